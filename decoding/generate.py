"""The decoding loop for every drafter and acceptance rule, for trees and chains. Plain decoding is a tree of one
node."""

import time
from collections.abc import Iterator, Sequence

import torch

from decoding.accept import Verification, make_rule
from decoding.config import GenerateConfig
from decoding.drafters.base import Drafter, DrafterStart
from decoding.limits import Limits
from decoding.sampling import Warp
from decoding.step import DraftRecord, EmittedToken, Step
from decoding.target import Target
from decoding.tree import DraftTree
from models.runtime.interface import ForwardOutput

__all__ = ["GenerateConfig", "generate"]


def generate(
    target: Target, drafter: Drafter, prompt_ids: Sequence[int], config: GenerateConfig | None = None
) -> Iterator[Step]:
    """Yield the Step of the prefill, then one Step per verification. Tokens are final; the caller may stop at any
    time."""
    config = config or GenerateConfig()
    generator = seeded_generator(config.seed)
    rule = make_rule(config, generator)
    record_probs = config.probabilities and drafter.kind == "verify"
    best_only = rule.best_only and not record_probs
    clock = Clock(target)
    scored = target.prefill(prompt_ids, drafter.reusable(prompt_ids), drafter.layers, rule.best_only)
    clock.lap("verify")
    limits = Limits(config, target.base.eos_ids, target.max_length - len(prompt_ids), target.base.tokenizer)
    token = rule.first(scored)
    tokens, finish = limits.cut((EmittedToken(token, drafter.own),))
    drafter.prefill(DrafterStart(prompt_ids, token, scored, config, generator))
    clock.lap("draft")
    yield Step(0, "prefill", tokens, counted=False, finish=finish, **clock.times())
    index = 1
    while finish is None and not limits.should_stop():
        clock.start()
        drafted = drafter.propose(token)
        tree = drafted.clipped(target.free_positions)
        clock.lap("draft")
        scored = target.score(tree, drafter.layers, best_only)
        clock.lap("verify")
        verdict = rule(tree, scored)
        emitted = emit(tree, verdict, drafter.own)
        tokens, finish = limits.cut(emitted)
        rows = (0, *verdict.path)[: len(tokens)]  # the row of the last token is not computed yet
        target.commit(tree, rows)
        drafter.observe([t.id for t in tokens], scored, rows)
        token = tokens[-1].id
        whole = len(tokens) == len(emitted) and len(tree) == len(drafted)
        accepted = tuple(node - 1 for node in verdict.path[: len(tokens)])
        drafts = trace(tree, base_probabilities(tree, scored, config) if record_probs else ())
        yield Step(index, drafter.kind, tokens, drafts, accepted, whole, finish, **clock.times())
        index += 1
    if finish is None:
        yield Step(index, drafter.kind, (), counted=False, finish="cancelled")


def emit(tree: DraftTree, verdict: Verification, own: str) -> tuple[EmittedToken, ...]:
    """The verified tokens with their origins: accepted draft tokens, then the base model's token."""
    depths, ranks = tree.shape.depths, tree.shape.ranks
    accepted = (EmittedToken(tree.tokens[node], "draft", depths[node], ranks[node]) for node in verdict.path)
    return (*accepted, EmittedToken(verdict.token, own))


def trace(tree: DraftTree, probs: tuple[float, ...] = ()) -> DraftRecord:
    """The tree's record in the trace: without the root; children of the root have parent -1."""
    shape = tree.shape
    parents = tuple(parent - 1 for parent in shape.parents[1:])
    logprobs = tree.logprobs[1:] or (0.0,) * len(parents)
    return DraftRecord(tree.tokens[1:], parents, shape.depths[1:], shape.ranks[1:], logprobs, probs)


@torch.inference_mode()
def base_probabilities(tree: DraftTree, scored: ForwardOutput, config: GenerateConfig) -> tuple[float, ...]:
    """The base model's probability of every node except the root, given its parent, with the sampling settings; at
    temperature 0 without them."""
    if len(tree) == 1:
        return ()
    device = scored.logits.device
    warp = Warp(config.temperature, config.top_k, config.top_p) if config.temperature else Warp()
    rows = warp(scored.logits[torch.tensor(tree.shape.parents[1:], device=device)])
    return tuple(rows.gather(1, torch.tensor(tree.tokens[1:], device=device)[:, None])[:, 0].tolist())


def seeded_generator(seed: int | None) -> torch.Generator:
    """A CPU generator, so that random numbers are the same for every device; None draws a seed."""
    generator = torch.Generator()
    generator.manual_seed(seed if seed is not None else int(torch.randint(2**62, ())))
    return generator


class Clock:
    """Milliseconds of one step by phase. Time that the caller takes between steps is not counted."""

    def __init__(self, target: Target):
        self.target = target
        self.start()

    def start(self) -> None:
        self.began = self.last = time.perf_counter()
        self.spent = {"draft": 0.0, "verify": 0.0}

    def lap(self, name: str) -> None:
        """Add the time since the last lap to `name`."""
        self.target.synchronize()
        now = time.perf_counter()
        self.spent[name] += now - self.last
        self.last = now

    def times(self) -> dict[str, float]:
        total = time.perf_counter() - self.began
        draft, verify = self.spent["draft"], self.spent["verify"]
        return {"ms_draft": draft * 1e3, "ms_verify": verify * 1e3, "ms_other": (total - draft - verify) * 1e3}
