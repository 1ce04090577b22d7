"""The decoding loop for all drafters and acceptance rules. Plain decoding is a tree of one node."""

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch

from decoding.accept import Verification, make_rule
from decoding.config import GenerateConfig
from decoding.drafters.base import Drafter, PrefillContext
from decoding.sampling import LogitsWarper
from decoding.step import DraftRecord, EmittedToken, Step
from decoding.target import Target
from decoding.tree import DraftTree
from models.runtime.cache import upload
from models.runtime.interface import ForwardOutput

__all__ = ["GenerateConfig", "generate"]


def generate(
    target: Target, drafter: Drafter, prompt_ids: Sequence[int], config: GenerateConfig | None = None
) -> Iterator[Step]:
    """Yield the Step of the prefill, then one Step per verification. Tokens are final; the caller may stop anytime."""
    config = config or GenerateConfig()
    generator = seeded_generator(config.seed)
    rule = make_rule(config, generator, target.cache.replays)
    record_probs = config.probabilities and drafter.kind == "verify"
    argmax_only = rule.argmax_only and not record_probs
    clock = Clock(target)
    reusable = drafter.max_reusable_prefix(prompt_ids)
    target_output = target.prefill(prompt_ids, reusable, drafter.layers, rule.argmax_only)
    clock.lap("verify")
    stopping = StoppingCriteria(config, target.base.eos_ids, target.max_length - len(prompt_ids), target.base.tokenizer)
    token = rule.first(target_output)
    tokens, finish = stopping.apply((EmittedToken(token, base_origin(drafter)),))
    drafter.prefill(PrefillContext(prompt_ids, token, target_output, config, generator))
    clock.lap("draft")
    yield Step(0, "prefill", tokens, counted=False, finish=finish, **clock.times())
    index = 1
    while finish is None and not stopping.should_stop():
        clock.start()
        proposed_tree = drafter.propose(token)
        tree = proposed_tree.clipped(target.free_positions)
        clock.lap("draft")
        target_output = target.forward_tree(tree, drafter.layers, argmax_only)
        clock.lap("verify")
        verification = rule(tree, target_output)
        tokens, finish = stopping.apply(emit(tree, verification, base_origin(drafter)))
        nodes = (0, *verification.path)[: len(tokens)]  # the last token is the next root, not cached yet
        target.commit(tree, nodes)
        drafter.update([t.id for t in tokens], target_output, nodes)
        token = tokens[-1].id
        is_complete = len(tokens) == len(verification.path) + 1 and len(tree) == len(proposed_tree)
        accepted = tuple(node - 1 for node in verification.path[: len(tokens)])
        probs = base_probabilities(tree, target_output, config) if record_probs else ()
        yield Step(
            index, drafter.kind, tokens, draft_record(tree, probs), accepted, is_complete, finish, **clock.times()
        )
        index += 1
    if finish is None:
        yield Step(index, drafter.kind, (), counted=False, finish="cancelled")


def base_origin(drafter: Drafter) -> str:
    return "plain" if drafter.kind == "plain" else "target"


def emit(tree: DraftTree, verification: Verification, origin: str) -> tuple[EmittedToken, ...]:
    """The verified tokens with their origins: accepted draft tokens, then the bonus token, of `origin`."""
    depths, ranks = tree.shape.depths, tree.shape.ranks
    accepted = (EmittedToken(tree.tokens[node], "draft", depths[node], ranks[node]) for node in verification.path)
    return (*accepted, EmittedToken(verification.bonus_token, origin))


def draft_record(tree: DraftTree, probs: tuple[float, ...] = ()) -> DraftRecord:
    """The tree's record in the trace: without the root; children of the root have parent -1."""
    shape = tree.shape
    parents = tuple(parent - 1 for parent in shape.parents[1:])
    logprobs = tree.logprobs[1:] or (0.0,) * len(parents)
    return DraftRecord(tree.tokens[1:], parents, shape.depths[1:], shape.ranks[1:], logprobs, probs)


@torch.inference_mode()
def base_probabilities(tree: DraftTree, target_output: ForwardOutput, config: GenerateConfig) -> tuple[float, ...]:
    """The base model's probability of every drafted node given its parent, with the sampling settings if any."""
    if len(tree) == 1:
        return ()
    device = target_output.logits.device
    warp = LogitsWarper(config.temperature, config.top_k, config.top_p) if config.temperature else LogitsWarper()
    probs = warp(target_output.logits[upload(tree.shape.parents[1:], device)])
    return tuple(probs.gather(1, upload(tree.tokens[1:], device)[:, None])[:, 0].tolist())


def seeded_generator(seed: int | None) -> torch.Generator:
    """A CPU generator, so that random numbers are the same for every device; None draws a seed."""
    generator = torch.Generator()
    generator.manual_seed(seed if seed is not None else int(torch.randint(2**62, ())))
    return generator


class Clock:
    """Milliseconds of one step by phase. Time that the caller takes between steps is not counted. On a GPU the phases
    end with events in its queue, so that measuring does not make the host wait."""

    def __init__(self, target: Target):
        self.device = target.base.device
        self.start()

    def start(self) -> None:
        self.began = time.perf_counter()
        self.laps = [("", self._mark())]

    def lap(self, name: str) -> None:
        """End the phase `name`."""
        self.laps.append((name, self._mark()))

    def times(self) -> dict[str, float]:
        """Waits for the end of the last phase."""
        spent, last = {"draft": 0.0, "verify": 0.0}, self.laps[-1][1]
        if isinstance(last, torch.cuda.Event) and not last.query():
            last.synchronize()
        for (_, begin), (name, end) in pairwise(self.laps):
            spent[name] += (end - begin) * 1e3 if isinstance(end, float) else begin.elapsed_time(end)
        total = (time.perf_counter() - self.began) * 1e3
        draft, verify = spent["draft"], spent["verify"]
        return {"ms_draft": draft, "ms_verify": verify, "ms_other": max(total - draft - verify, 0.0)}

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event


class StoppingCriteria:
    """The end of one generation: end-of-turn ids, stop texts, length. Only `apply` changes the state."""

    def __init__(self, config: GenerateConfig, eos_ids: frozenset[int], free_positions: int, tokenizer: Any):
        """`free_positions`: number of new tokens that fit the model."""
        self.eos_ids = eos_ids if config.eos_ids is None else config.eos_ids
        self.remaining = min(config.max_tokens, free_positions)
        self.should_stop = config.should_stop or (lambda: False)
        self.stop, self.tokenizer = config.stop, tokenizer
        self.window = max((len(text.encode()) for text in config.stop), default=0) + 4  # a token has at least one byte
        self.last_ids: list[int] = []

    def apply(self, tokens: Sequence[EmittedToken]) -> tuple[tuple[EmittedToken, ...], str | None]:
        """(tokens to emit, reason why the generation ends with them or None)."""
        for count, token in enumerate(tokens, 1):
            self.remaining -= 1
            if token.id in self.eos_ids or (self.stop and self._ends_with_stop(token.id)):
                return tuple(tokens[:count]), "stop"
            if self.remaining <= 0:
                return tuple(tokens[:count]), "length"
        return tuple(tokens), None

    def _ends_with_stop(self, token: int) -> bool:
        """Decodes only the last tokens, so the cost of a token does not grow with the response."""
        self.last_ids = [*self.last_ids[-self.window :], token]
        text = self.tokenizer.decode(self.last_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return any(stop in text for stop in self.stop)
