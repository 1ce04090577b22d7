"""Whether an export drafts what the checkpoint drafts: the network that the reader rebuilt from the export beside the
draft itself, on the base's real hidden states. Both compute in float32 whatever the files hold, so one bound serves
all: the largest difference of a logit, over the largest logit (at least 1), is at most 1e-4, or, where a draft makes
more of a rounding, ten times what one rounding of its input does; and chains drafted greedily from the same places must
be the same tokens, of which the base's own continuation accepts the same number.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from formats.passages import DEPTH, PROMPTS, Passage, passages
from formats.report import Check
from models.logits import bend
from speculoos.reporting import Reporter, Silent, heed

BOUND, ROUNDINGS, LOOSEST = 1e-4, 10.0, 1e-3
"""The bound; roundings of the input whose effect it is otherwise; and what it never exceeds."""
PROVING = "compared with what its server reads"
Logits = Iterator[tuple[torch.Tensor, torch.Tensor]]
Chain = Callable[[Passage, int], tuple[list[int], list[int]]]


@dataclass
class Proof:
    """What was compared so far."""

    difference: float = 0.0
    rounding: float = 0.0
    """What one rounding of the draft's input makes of its logits, where that was looked at."""
    places: int = 0
    wrong: list[str] = field(default_factory=list)
    drafted: int = 0
    accepted: list[int] = field(default_factory=lambda: [0, 0])

    def logits(self, pairs: Logits) -> None:
        """Pairs [n, V'] of the draft's and the reader's."""
        for ours, theirs in pairs:
            heed()
            if ours.shape != theirs.shape:
                self.wrong.append(f"{theirs.shape[-1]} columns where the draft has {ours.shape[-1]}.")
                continue
            off = difference(ours, theirs)
            self.difference = max(self.difference, off) if off == off else float("inf")
            self.places += len(ours)

    def chains(self, passage: Passage, chain: Chain) -> None:
        """The chains of both from every anchor."""
        for anchor in passage.anchors:
            heed()
            both = chain(passage, anchor)
            if both[0] != both[1]:
                self.wrong.append(f"from place {anchor} the draft drafts {both[0]}, the export {both[1]}.")
            self.drafted += len(both[0])
            for side, tokens in enumerate(both):
                self.accepted[side] += passage.accepted(anchor, tokens)

    def checks(self) -> list[Check]:
        """`logits` and `tokens`."""
        bound = max(BOUND, min(ROUNDINGS * self.rounding, LOOSEST))
        near = self.difference <= bound and self.places > 0
        told = (
            f"largest difference {self.difference:.1e} of the largest logit at {self.places} places, bound {bound:.2g}"
        )
        same = f"{self.drafted} tokens drafted alike, {self.accepted[0]} accepted by the base in both"
        right = not self.wrong and self.accepted[0] == self.accepted[1]
        return [Check("logits", near, told), Check("tokens", right, same if right else " ".join(self.wrong[:3]))]

    def figures(self) -> dict[str, float]:
        """For reports."""
        return {
            "largest_relative_difference": self.difference,
            "places": self.places,
            "drafted": self.drafted,
            "accepted": self.accepted[0],
        }


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest one between logits, over the largest of ours (at least 1)."""
    return float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1.0))


@torch.no_grad()
def prove(draft: Any, reader: Any, base: Any, reporter: Reporter | None = None) -> Proof:
    """Compare `draft` with the `reader` of an export, by method. Raises ValueError or KeyError, naming file and key,
    where the reader cannot run. Where a reporter is heeded, a stop is met before every layer of the base and at every
    piece of a large file."""
    reporter = reporter or Silent()
    sides = {"medusa": _Heads, "draft": _Models}.get(draft.method, _Eagles)(draft, reader, base)
    proof = Proof()
    with _layers_heed(base):
        for done, passage in enumerate(passages(base, sides.layers)):
            reporter.progress(done, len(PROMPTS), "prompts", PROVING)
            proof.logits(sides.logits(passage))
            proof.chains(passage, sides.chain)
    proof.rounding = sides.rounding
    reporter.progress(len(PROMPTS), len(PROMPTS), "prompts", PROVING)
    if unused := getattr(getattr(reader, "weights", None), "unused", []):
        proof.wrong.append(f"the reader has no use for {unused[0]}.")
    return proof


@contextmanager
def _layers_heed(base: Any) -> Iterator[None]:
    """While open, a forward of a large base can be stopped between two layers."""
    handles = [layer.register_forward_pre_hook(lambda *_: heed()) for layer in base.layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Eagles:
    """EAGLE-1 and EAGLE-3. Places have no cache: every step runs the whole row anew."""

    def __init__(self, draft: Any, reader: Any, base: Any):
        self.draft, self.reader, self.base = draft, reader, base
        if min(reader.layer_inputs, default=1) < 1:
            raise ValueError(f"layers {list(reader.layer_inputs)}: the input of layer 0 is no hidden state.")
        if max(reader.layer_inputs, default=0) > base.num_layers:
            raise ValueError(f"layers {list(reader.layer_inputs)}: the base has {base.num_layers} layers.")
        self.theirs = tuple(layer - 1 for layer in reader.layer_inputs)
        self.layers = (*draft.layers_wanted, *self.theirs)
        self.rounding = 0.0

    def logits(self, passage: Passage) -> Logits:
        rows, tokens = len(passage.ids) - 1, passage.ids[1:]
        features = self._our_features(passage, rows)
        ours = self._scores(self.draft, self._our_step(features, tokens))
        rounded = self._scores(self.draft, self._our_step(_rounded(features), tokens))
        self.rounding = max(self.rounding, difference(ours, rounded))
        theirs = self._their_step(self._their_features(passage, rows), tokens)
        yield ours, self._scores(self.reader, theirs)

    def chain(self, passage: Passage, anchor: int) -> tuple[list[int], list[int]]:
        rows, tokens = anchor + 1, passage.ids[1 : anchor + 2]
        ours = self._grown(self._our_features(passage, rows), tokens, self._our_step, self.draft)
        theirs = self._grown(self._their_features(passage, rows), tokens, self._their_step, self.reader)
        return ours, theirs

    def _grown(self, features: torch.Tensor, tokens: Sequence[int], step: Any, side: Any) -> list[int]:
        drafted: list[int] = []
        for _ in range(DEPTH):
            last = step(features, [*tokens, *drafted])[-1:]
            column = int(self._scores(side, last)[0].argmax())
            drafted.append(self._token(side, column))
            features = torch.cat([features, last])
        return drafted

    def _our_features(self, passage: Passage, rows: int) -> torch.Tensor:
        aux = tuple(passage.outputs[layer][None, :rows] for layer in self.draft.layers_wanted)
        return self.draft.fuse(passage.hidden[None, :rows], aux)[0]

    def _their_features(self, passage: Passage, rows: int) -> torch.Tensor:
        inputs = passage.side_by_side(self.theirs, rows) if self.theirs else None
        return self.reader.fuse(passage.hidden[:rows], inputs)

    def _our_step(self, features: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        ids, places = torch.tensor([tokens]), torch.arange(len(tokens))[None]
        device = features.device
        return self.draft(features[None], ids.to(device), places.to(device))[0]

    def _their_step(self, features: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        embedded = self.reader.embed(torch.tensor(tokens, device=features.device), self.base.embed_tokens)
        return self.reader.step(features, embedded)

    def _scores(self, side: Any, features: torch.Tensor) -> torch.Tensor:
        return side.logits(features) if side is self.draft else side.logits(features, self.base.logits)

    def _token(self, side: Any, column: int) -> int:
        if side is self.draft:
            return int(side.to_target(torch.tensor([column], device=self.base.device))[0])
        return int(side.target_ids[column])


def _rounded(features: torch.Tensor) -> torch.Tensor:
    """Every other number one rounding away."""
    signs = torch.ones(features.shape[-1], device=features.device, dtype=features.dtype)
    signs[::2] = -1
    return features * (1 + signs * torch.finfo(features.dtype).eps)


class _Heads:
    """Medusa: every head's best token is the chain. What some bases do to the product with their head (a scale, a cap),
    servers leave out for drafts: it changes no order, and is done to the reader's logits here to compare them. A head
    is run once for all places of a passage, since each may be a large matrix that is read for it."""

    layers: tuple[int, ...] = ()
    rounding = 0.0

    def __init__(self, draft: Any, reader: Any, base: Any):
        self.draft, self.reader, self.rule = draft, reader, base.logit_rule
        if reader.heads != draft.num_heads:
            raise ValueError(f"config.json: {reader.heads} heads where the draft has {draft.num_heads}.")
        self.best: list[tuple[torch.Tensor, torch.Tensor]] = []
        """For each head the best token [n] at every place of the passage, the draft's and the reader's."""

    def logits(self, passage: Passage) -> Logits:
        self.best = []
        for head in range(self.draft.num_heads):
            ours = self.draft.forward_head(head, passage.hidden)
            theirs = bend(self.reader.logits(head, passage.hidden), self.rule)
            yield ours, theirs
            tokens = self.reader.target_ids[theirs.argmax(-1).to(self.reader.target_ids.device)]
            self.best.append((self.draft.to_target(ours.argmax(-1)), tokens))

    def chain(self, passage: Passage, anchor: int) -> tuple[list[int], list[int]]:
        return [int(ours[anchor]) for ours, _ in self.best], [int(theirs[anchor]) for _, theirs in self.best]


class _Models:
    """Standalone drafts: both are models of transformers."""

    layers: tuple[int, ...] = ()
    rounding = 0.0

    def __init__(self, draft: Any, reader: Any, base: Any):
        self.ours, self.theirs = draft.model, reader

    def logits(self, passage: Passage) -> Logits:
        ids = torch.tensor([passage.ids], device=passage.hidden.device)
        yield tuple(model(input_ids=ids, use_cache=False).logits[0] for model in (self.ours, self.theirs))

    def chain(self, passage: Passage, anchor: int) -> tuple[list[int], list[int]]:
        return self._drafted(self.ours, passage, anchor), self._drafted(self.theirs, passage, anchor)

    def _drafted(self, model: Any, passage: Passage, anchor: int) -> list[int]:
        ids = passage.ids[: anchor + 2]
        for _ in range(DEPTH):
            logits = model(input_ids=torch.tensor([ids], device=passage.hidden.device), use_cache=False).logits
            ids = [*ids, int(logits[0, -1].argmax())]
        return ids[anchor + 2 :]
