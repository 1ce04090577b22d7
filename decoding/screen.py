"""The best token of each row without reading the whole head in fp32: a bfloat16 copy of it, half the bytes, names the
tokens that can be best, and their fp32 rows decide. Exact: the error of the copy is bounded, not guessed.

With h̃ and w̃ the hidden state and a row of the head rounded to bfloat16, Cauchy–Schwarz gives

    |h·w − h̃·w̃| ≤ ‖h − h̃‖·max‖w‖ + ‖h̃‖·max‖w − w̃‖ = e,

to which summing H products in fp32 adds at most H·2⁻²⁴·‖h‖·‖w‖ on either side; the product a is rounded once more, by
2⁻⁸·|a|. So the best token's a lies at most 2e + 2⁻⁷·|max a| below the largest (and a hundredth for second-order terms).
For SmolLM2-135M that leaves 2 or 3 of 49,152 tokens in the median of the places it writes itself.
"""

import math

import torch

from decoding.packed import PackedLinear, packing_works
from models.base import Base, has_bfloat16

ROUNDOFF = 2.0**-8
SLACK = 1.01
MOST = 1024
"""Candidates a row; where there are more, the whole head costs little more than their rows."""


def make_screen(base: Base) -> "Screen | None":
    """A screen for a base whose fp32 head is its embedding table, which stays in memory row by row as it is; None
    where it is not, or where the processor does not multiply in bfloat16."""
    table, head = base.embed_tokens.weight, base.lm_head
    tied = head.weight.data_ptr() == table.data_ptr() and head.bias is None and table.dtype == torch.float32
    if tied and has_bfloat16(base.device) and packing_works(torch.bfloat16):
        return Screen(table.detach())
    return None


class Screen:
    """Best tokens by a head with rows `table` [V, H]."""

    @torch.inference_mode()
    def __init__(self, table: torch.Tensor):
        self.table, self.groups = table, math.gcd(len(table), 64)
        """Tokens i, i + V/64, … are a group: its largest is found first, most groups are looked at no further."""
        rounded, self.longest = table.bfloat16(), float(table.norm(dim=1).max())
        """max ‖w‖"""
        lost = max(float((a - b).norm(dim=1).max()) for a, b in _parts(table, rounded))
        self.lost = lost + table.shape[1] * 2.0**-23 * self.longest
        """max ‖w − w̃‖, and what summing may add"""
        self.rough = PackedLinear(rounded)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Ids int64 [n] of the largest logits of hidden [n, H], the first of equal ones; None where too many could be
        (or a number is no number): ask the whole head."""
        rounded = hidden.bfloat16()
        groups = self.rough(rounded).view(len(hidden), self.groups, -1)
        tops = groups.amax(dim=1)
        largest = tops.amax(dim=1).float()
        margin = self.error(hidden, rounded) + ROUNDOFF * largest.abs()
        least = (largest - 2 * SLACK * margin)[:, None]
        row, column = (tops >= least).nonzero(as_tuple=True)
        which, member = (groups[row, :, column] >= least[row]).nonzero(as_tuple=True)
        row, token = row[which], member * tops.shape[1] + column[which]
        if not len(hidden) <= len(row) <= MOST * len(hidden):
            return None
        return _best_of_each(len(hidden), row, token, torch.linalg.vecdot(hidden[row], self.table[token]))

    def error(self, hidden: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
        """e [n]: the most by which a product of `rounded` hidden states, not rounded itself, may be wrong."""
        length = torch.linalg.vector_norm
        return self.longest * length(hidden - rounded, dim=1) + self.lost * length(hidden, dim=1)


def _best_of_each(rows: int, row: torch.Tensor, token: torch.Tensor, logits: torch.Tensor) -> torch.Tensor | None:
    """The token of the largest of the logits [m] of each row, the first of equal ones."""
    largest = logits.new_full((rows,), float("-inf")).scatter_reduce_(0, row, logits, "amax")
    hits = (logits == largest[row]).nonzero()[:, 0]
    found: dict[int, int] = {}
    for at, one in zip(row[hits].tolist(), token[hits].tolist(), strict=True):
        found[at] = min(one, found.get(at, one))
    return torch.tensor([found[at] for at in range(rows)]) if len(found) == rows else None


def _parts(*tables: torch.Tensor) -> zip:
    """Some rows at a time: no second fp32 table is made."""
    return zip(*(table.split(4096) for table in tables), strict=True)
