"""Compare an export with its checkpoint: the network that the reader rebuilds from the export and the draft itself, on
hidden states of the base model. Both compute in float32 whatever the files hold, so one bound applies to all: the
largest difference of a logit, over the largest logit (at least 1), is at most 1e-4, or ten times the effect of one
rounding of the draft's input if that is larger (at most 1e-3). Chains drafted greedily from the same positions must
have the same tokens and the same accepted length."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from formats.report import Check
from models.chat import render
from models.logits import apply_logit_rule
from speculoos.reporting import Reporter, SilentReporter, check_stop

BOUND, ROUNDINGS, LOOSEST = 1e-4, 10.0, 1e-3
"""The bound; the factor on the effect of one rounding of the input; the maximum of the bound."""
COMPARING_NOTE = "compared with what its server reads"
PROMPTS = ("Why is the sky blue?", "Write one sentence about a fox.", "1 2 3 4 5 and so on:")
CONTINUATION_TOKENS = 16
"""Tokens that the base model generates after each prompt."""
ANCHORS = (1, 6, 11)
"""Positions from which chains are drafted, counted from the prompt's last token."""
DEPTH = 4
"""Number of tokens in a chain."""


@dataclass(frozen=True)
class Passage:
    """`ids`: n tokens of prompt and continuation. `prompt`: number of prompt tokens. `hidden` [n, H]: the input of the
    base model's lm_head. `outputs`: output [n, H] of each layer, by its 0-based index."""

    ids: list[int]
    prompt: int
    hidden: Tensor
    outputs: dict[int, Tensor]

    @property
    def anchors(self) -> list[int]:
        """Positions t whose next token t + 1 is known; a chain begins at t + 2."""
        return [self.prompt - 1 + offset for offset in ANCHORS]

    def accepted(self, anchor: int, drafted: Sequence[int]) -> int:
        """How many tokens drafted for positions anchor + 2, … match the base model's continuation."""
        continuation = self.ids[anchor + 2 :]
        return next((i for i, (a, b) in enumerate(zip(drafted, continuation, strict=False)) if a != b), len(drafted))


@torch.no_grad()
def passages(base: Any, layers: Sequence[int]) -> Iterator[Passage]:
    """One passage for each of PROMPTS, with the outputs of `layers`. The base model is in float32."""
    for text in PROMPTS:
        prompt = render(base.tokenizer, [{"role": "user", "content": text}])
        ids = [*prompt, *continuation(base, tuple(prompt))]
        numbers = sorted(set(layers))
        hidden, outputs = base.forward_hidden(torch.tensor([ids], device=base.device), layers=numbers)
        states = {layer: state[0] for layer, state in zip(numbers, outputs, strict=True)}
        yield Passage(ids, len(prompt), hidden[0], states)


def continuation(base: Any, prompt: tuple[int, ...]) -> list[int]:
    """The base model's greedy tokens after a prompt."""
    return _greedy(base.model, prompt, CONTINUATION_TOKENS)


def _greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """A transformers model's best `count` tokens after a prompt."""
    tokens: list[int] = []
    new, cache = list(prompt), DynamicCache(config=model.config)
    for _ in range(count):
        ids = torch.tensor([new], device=model.device)
        out = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
        new = [int(out.logits[0, -1].argmax())]
        tokens += new
    return tokens


@dataclass
class DraftComparison:
    """The comparison so far; a stop is checked at every pair. `drafted` counts the draft's tokens, `accepted` those of
    draft and export."""

    reporter: Reporter
    difference: float = 0.0
    rounding: float = 0.0
    """Largest effect of one rounding of the draft's input on its logits; 0 if not measured."""
    positions: int = 0
    wrong: list[str] = field(default_factory=list)
    drafted: int = 0
    accepted: list[int] = field(default_factory=lambda: [0, 0])

    def logits(self, pairs: Iterator[tuple[Tensor, Tensor]]) -> None:
        """Add pairs of logits [n, V'] of the draft and the export."""
        for expected, actual in pairs:
            check_stop(self.reporter)
            if expected.shape != actual.shape:
                self.wrong.append(f"{actual.shape[-1]} columns, but the draft has {expected.shape[-1]}.")
                continue
            off = difference(expected, actual)
            self.difference = max(self.difference, off) if off == off else float("inf")
            self.positions += len(expected)

    def chains(self, passage: Passage, chain: Callable[[Passage, int], tuple[list[int], list[int]]]) -> None:
        """Add the chains of the draft and the export from every anchor."""
        for anchor in passage.anchors:
            check_stop(self.reporter)
            both = chain(passage, anchor)
            if both[0] != both[1]:
                self.wrong.append(f"from position {anchor} the draft drafts {both[0]}, the export {both[1]}.")
            self.drafted += len(both[0])
            for side, tokens in enumerate(both):
                self.accepted[side] += passage.accepted(anchor, tokens)

    def checks(self) -> list[Check]:
        """The checks `logits` and `tokens`."""
        bound = max(BOUND, min(ROUNDINGS * self.rounding, LOOSEST))
        near = self.difference <= bound and self.positions > 0
        detail = (
            f"largest difference {self.difference:.1e} of the largest logit at {self.positions} positions, "
            f"bound {bound:.2g}"
        )
        same = f"{self.drafted} drafted tokens are the same, the base model accepts {self.accepted[0]} in both"
        passed = not self.wrong and self.accepted[0] == self.accepted[1]
        return [Check("logits", near, detail), Check("tokens", passed, same if passed else " ".join(self.wrong[:3]))]

    def figures(self) -> dict[str, float]:
        return {
            "largest_relative_difference": self.difference,
            "positions": self.positions,
            "drafted": self.drafted,
            "accepted": self.accepted[0],
        }


def difference(expected: Tensor, actual: Tensor) -> float:
    """Largest absolute difference of logits, over the largest expected logit (at least 1)."""
    return float((expected - actual).abs().max() / expected.abs().max().clamp(min=1.0))


@torch.no_grad()
def compare_drafts(draft: Any, reader: Any, base: Any, reporter: Reporter | None = None) -> DraftComparison:
    """Compare `draft` with the `reader` of an export, by the reader's own `sides` if it has them. Raises ValueError or
    KeyError with the file and the key if the reader cannot run, Cancelled if a stop is requested, which is checked
    before every layer of the base model."""
    reporter = reporter or SilentReporter()
    by_method = {"medusa": _Heads, "peagle": _Parallel, "draft": _Models}
    sides = (getattr(reader, "sides", None) or by_method.get(draft.method, _Eagles))(draft, reader, base)
    proof = DraftComparison(reporter)
    with _stoppable(base, reporter):
        for done, passage in enumerate(passages(base, sides.layers)):
            reporter.progress(done, len(PROMPTS), "prompts", COMPARING_NOTE)
            proof.logits(sides.logits(passage))
            proof.chains(passage, sides.chain)
    proof.rounding = sides.rounding
    reporter.progress(len(PROMPTS), len(PROMPTS), "prompts", COMPARING_NOTE)
    if unused := getattr(getattr(reader, "weights", None), "unused", []):
        proof.wrong.append(f"the reader does not use the tensor {unused[0]}.")
    return proof


@contextmanager
def _stoppable(base: Any, reporter: Reporter) -> Iterator[None]:
    """Within the block, a forward of the base model can be stopped between two layers."""
    handles = [layer.register_forward_pre_hook(lambda *_: check_stop(reporter)) for layer in base.layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Eagles:
    """EAGLE-1 and EAGLE-3, without a KV cache: every step computes all positions again."""

    def __init__(self, draft: Any, reader: Any, base: Any):
        if min(reader.layer_inputs, default=1) < 1:
            raise ValueError(f"layers {list(reader.layer_inputs)}: the input of layer 0 is not a hidden state.")
        if max(reader.layer_inputs, default=0) > base.num_layers:
            raise ValueError(f"layers {list(reader.layer_inputs)}: the base model has {base.num_layers} layers.")
        reader.base = base
        self.draft, self.reader = draft, reader
        self.layers = (*draft.layers_wanted, *reader.layers_wanted)
        self.rounding = 0.0

    def logits(self, passage: Passage) -> Iterator[tuple[Tensor, Tensor]]:
        rows, tokens = len(passage.ids) - 1, passage.ids[1:]
        features = _features(self.draft, passage, rows)
        expected = self.draft.logits(_step(self.draft, features, tokens)[0])
        rounded = self.draft.logits(_step(self.draft, rounded_features(features), tokens)[0])
        self.rounding = max(self.rounding, difference(expected, rounded))
        yield expected, self.reader.logits(_step(self.reader, _features(self.reader, passage, rows), tokens)[0])

    def chain(self, passage: Passage, anchor: int) -> tuple[list[int], list[int]]:
        return self._chain(self.draft, passage, anchor), self._chain(self.reader, passage, anchor)

    def _chain(self, side: Any, passage: Passage, anchor: int) -> list[int]:
        features, tokens = _features(side, passage, anchor + 1), passage.ids[1 : anchor + 2]
        drafted: list[int] = []
        for _ in range(DEPTH):
            last = _step(side, features, [*tokens, *drafted])[:, -1:]
            drafted.append(int(side.to_target(side.logits(last[0]).argmax(-1))[0]))
            features = torch.cat([features, last], 1)
        return drafted


class _Parallel(_Eagles):
    """P-EAGLE: a chain is drafted in one pass, with masked positions after the text."""

    def logits(self, passage: Passage) -> Iterator[tuple[Tensor, Tensor]]:
        yield from super().logits(passage)
        for anchor in passage.anchors:
            yield self._masked(self.draft, passage, anchor), self._masked(self.reader, passage, anchor)

    def _chain(self, side: Any, passage: Passage, anchor: int) -> list[int]:
        return side.to_target(self._masked(side, passage, anchor).argmax(-1)).tolist()

    def _masked(self, side: Any, passage: Passage, anchor: int) -> Tensor:
        """Logits [DEPTH, V'] at an anchor and the masked positions after it."""
        masked = DEPTH - 1
        mask_features = side.mask_feature().expand(1, masked, -1)
        tokens = [*passage.ids[1 : anchor + 2], *[side.mask_token_id] * masked]
        features = torch.cat([_features(side, passage, anchor + 1), mask_features], 1)
        return side.logits(_step(side, features, tokens)[0, -DEPTH:])


def _features(side: Any, passage: Passage, rows: int) -> Tensor:
    """[1, rows, H]"""
    aux = tuple(passage.outputs[layer][None, :rows] for layer in side.layers_wanted)
    return side.fuse(passage.hidden[None, :rows], aux)


def _step(side: Any, features: Tensor, tokens: Sequence[int]) -> Tensor:
    ids = torch.tensor([tokens], device=features.device)
    return side(features, ids, torch.arange(len(tokens), device=features.device)[None])


def rounded_features(features: Tensor) -> Tensor:
    """Features with a relative error of one rounding, with alternating signs."""
    signs = torch.ones(features.shape[-1], device=features.device, dtype=features.dtype)
    signs[::2] = -1
    return features * (1 + signs * torch.finfo(features.dtype).eps)


class _Heads:
    """Medusa: the chain is the best token of every head. Servers do not apply the base model's scale or cap of logits
    to drafts, since it does not change their order; here it is applied to the reader's logits to compare them. A head
    runs once for all positions of a passage, because its matrix may be large and is read from the file each time."""

    layers: tuple[int, ...] = ()
    rounding = 0.0

    def __init__(self, draft: Any, reader: Any, base: Any):
        self.draft, self.reader, self.rule = draft, reader, base.logit_rule
        if reader.heads != draft.num_heads:
            raise ValueError(f"config.json: {reader.heads} heads, but the draft has {draft.num_heads}.")
        self.best: list[tuple[Tensor, Tensor]] = []
        """For each head, the best tokens [n] at all positions of the passage, of the draft and of the reader."""

    def logits(self, passage: Passage) -> Iterator[tuple[Tensor, Tensor]]:
        self.best = []
        for head in range(self.draft.num_heads):
            expected = self.draft.forward_head(head, passage.hidden)
            actual = apply_logit_rule(self.reader.logits(head, passage.hidden), self.rule)
            yield expected, actual
            tokens = self.reader.target_ids[actual.argmax(-1).to(self.reader.target_ids.device)]
            self.best.append((self.draft.to_target(expected.argmax(-1)), tokens))

    def chain(self, passage: Passage, anchor: int) -> tuple[list[int], list[int]]:
        return [int(expected[anchor]) for expected, _ in self.best], [int(actual[anchor]) for _, actual in self.best]


class _Models:
    """Standalone drafts: both networks are transformers models."""

    layers: tuple[int, ...] = ()
    rounding = 0.0

    def __init__(self, draft: Any, reader: Any, base: Any):
        self.draft, self.reader = draft.model, reader

    def logits(self, passage: Passage) -> Iterator[tuple[Tensor, Tensor]]:
        ids = torch.tensor([passage.ids], device=passage.hidden.device)
        yield tuple(model(input_ids=ids, use_cache=False).logits[0] for model in (self.draft, self.reader))

    def chain(self, passage: Passage, anchor: int) -> tuple[list[int], list[int]]:
        prompt = passage.ids[: anchor + 2]
        return _greedy(self.draft, prompt, DEPTH), _greedy(self.reader, prompt, DEPTH)
