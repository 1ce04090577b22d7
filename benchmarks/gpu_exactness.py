"""Parts of benchmarks.gpu_check: compare every drafter's output with transformers, and CUDA graphs with eager mode.

Uses a tiny random base model of every family, and the starter if installed, with every drafter: fp32 must match token
by token (except ties as in benchmarks.exactness), for bf16 the share of equal tokens counts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.decode import prompts_of
from benchmarks.exactness import ExactnessOutcome, Reference, compare, guided, reference, verdict
from benchmarks.gpu_claims import AGREEMENT_GOAL, Bench, Claim, Findings, first_line
from decoding.drafters import make_drafter
from decoding.drafters.base import Drafter
from decoding.target import Target, fast_target
from decoding.tree import DraftTree, shape_from_choices
from decoding.tuning import measure_forward
from evaluation.questions import BUILT_IN
from models.base import LoadedBase, load_base
from models.checkpoints import load_draft
from models.eagle import EagleDraft
from models.eagle3 import Eagle3Draft
from models.medusa import MedusaConfig, MedusaHeads
from models.runtime.graphs import GraphedForward
from models.runtime.interface import ForwardOutput
from models.standalone import StandaloneDraft
from models.tiny import FAMILIES, make_tiny_base
from tests.decoding.replay import ReplayDrafter

CHOICES = [[0, 0, 0, 0], [0, 1, 0], [1, 0], [1, 1]]
DYNAMIC = {"depth": 3, "top_k": 3, "nodes": 10}
TEXTS = ("1 2 3 + 1 2 3 +", "the quick brown fox")
STARTER = "starter"
CONTEXT = 256
"""Size of a tiny base model's KV cache in tokens."""
STARTER_CONTEXT = 1024
NOISE = 0.02
# The scored trees start in the first bucket of cache rows (256) and end in the second; each is used several times.
GRAPH_CONTEXT, GRAPH_PROMPT, TREES = 700, 235, 8
CLOSE = 1e-3
"""Allowed fp32 logit difference between a graph replay and the eager forward pass."""

Judge = Callable[[Target, Drafter, Reference], Any]
Results = dict[str, dict[str, list[Any] | str]]
"""{drafter: {base: results of the judge per prompt, or a one-line error}}"""


@dataclass
class Subject:
    """A base model with reference outputs for some prompts, and drafters by name."""

    name: str
    target: Target
    expected: list[Reference]
    drafters: dict[str, Callable[[Reference], Drafter]]


@dataclass
class GuidedRun:
    """One prompt decoded along the reference: its number of tokens, and the reference's logit gap at each differing
    token."""

    tokens: int
    gaps: list[float] = field(default_factory=list)


def exactness(bench: Bench) -> Findings:
    """fp32: the output of every drafter equals transformers, token by token."""
    return Findings([_exact(name, by_base) for name, by_base in swept(bench, "float32", compare).items()])


def agreement(bench: Bench) -> Findings:
    """bf16: the output of every drafter equals transformers except for rounding."""
    return Findings([_agrees(name, by_base) for name, by_base in swept(bench, "bfloat16", follow_reference).items()])


def follow_reference(target: Target, drafter: Drafter, expected: Reference) -> GuidedRun:
    """Compare our tokens with the reference; after each difference, continue with the reference's text."""
    length = len(expected.tokens)
    return GuidedRun(length, [expected.gaps[at] for _, at, _ in guided(target, drafter, expected) if at < length])


def swept(bench: Bench, dtype: str, judge: Judge) -> Results:
    """Apply `judge` to every prompt, base model and drafter. Raises OutOfTime at the deadline."""
    results: Results = defaultdict(dict)
    for name in (*FAMILIES, *([STARTER] if not bench.dry and (bench.starter / "config.json").exists() else [])):
        bench.check_time()
        try:
            subject = starter(bench, dtype) if name == STARTER else tiny(bench, name, dtype)
        except Exception as error:  # continue with the other families
            results["every drafter"][name] = first_line(error)
            continue
        for drafter, make in subject.drafters.items():
            bench.check_time()
            results[drafter][name] = _judged(subject, make, judge)
    return results


def _judged(subject: Subject, make: Callable[[Reference], Drafter], judge: Judge) -> list[Any] | str:
    try:
        return [judge(subject.target, make(expected), expected) for expected in subject.expected]
    except Exception as error:
        return first_line(error)


def tiny(bench: Bench, family: str, dtype: str) -> Subject:
    """A tiny random base model of a family, without EOS tokens, with every kind of drafter."""
    kind, overrides = FAMILIES[family]
    folder = bench.scratch / family
    if not folder.exists():
        make_tiny_base(folder, kind, num_hidden_layers=2, **overrides)
    theirs, own = (endless(load_base(folder, dtype, str(bench.device))) for _ in range(2))
    prompts = [own.tokenizer(text)["input_ids"] for text in TEXTS[: bench.sizes.prompts]]
    drafts = untrained(own)  # before `fast_target` takes over the weights they start from
    target = fast_target(own, CONTEXT)
    expected = [reference(theirs, prompt, bench.sizes.tokens) for prompt in prompts]
    return Subject(family, target, expected, drafters(target, drafts))


def starter(bench: Bench, dtype: str) -> Subject:
    """The starter with its own head, on the first built-in questions."""
    theirs, own = (load_base(bench.starter, dtype, str(bench.device)) for _ in range(2))
    prompts = prompts_of(own.tokenizer, BUILT_IN, 2 * bench.sizes.prompts)
    expected = [reference(theirs, prompt, bench.sizes.answer_tokens) for prompt in prompts]
    head = load_draft(bench.head, own)
    target = fast_target(own, STARTER_CONTEXT)
    choices = {"plain": (None, {}), "n-gram": (None, {"drafter": "ngram"}), "starter's head": (head, {})}
    return Subject(STARTER, target, expected, {name: _maker(target, *one) for name, one in choices.items()})


def endless(base: LoadedBase) -> LoadedBase:
    """`base` without EOS tokens, so that every answer has full length."""
    base.eos_ids = frozenset()
    return base


def untrained(base: LoadedBase) -> dict[str, Any]:
    """An untrained draft model of every method. The standalone one is the base model with noise."""
    torch.manual_seed(0)
    return {
        "medusa": MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 4), base),
        "eagle": EagleDraft.from_base(base),
        "eagle3": Eagle3Draft.from_base(base, draft_ids=torch.arange(0, base.vocab_size, 2)),
        "draft": noisy(base),
    }


@torch.no_grad()
def noisy(base: LoadedBase) -> StandaloneDraft:
    """The base model as a standalone draft model, with noise on its weights."""
    draft = StandaloneDraft.from_base(base, base.num_layers).requires_grad_(False)
    draft.eval()
    for weight in draft.parameters():
        weight += NOISE * torch.randn(weight.shape).to(weight)
    return draft


def drafters(target: Target, drafts: dict[str, Any]) -> dict[str, Callable[[Reference], Drafter]]:
    """Factories of drafters by name; `replayed` drafts the reference tokens, on varying paths of a tree."""
    choices = {
        "plain": (None, {}),
        "n-gram": (None, {"drafter": "ngram", "width": 3, "depth": 4}),
        "Medusa": (drafts["medusa"], {"tree": CHOICES}),
        "EAGLE-1": (drafts["eagle"], {"tree": CHOICES}),
        "EAGLE-2 tree": (drafts["eagle"], DYNAMIC),
        "EAGLE-3": (drafts["eagle3"], DYNAMIC),
        "standalone": (drafts["draft"], {"tree": CHOICES}),
    }
    shape, size = shape_from_choices(CHOICES), target.base.vocab_size
    makers = {name: _maker(target, *one) for name, one in choices.items()}
    return makers | {"replayed": lambda expected: ReplayDrafter(expected.tokens, shape, size)}


def _maker(target: Target, draft: Any, options: dict[str, Any]) -> Callable[[Reference], Drafter]:
    return lambda _expected: make_drafter(target, draft, options)


def _exact(name: str, by_base: dict[str, list[ExactnessOutcome] | str]) -> Claim:
    outcomes = [one for result in by_base.values() if isinstance(result, list) for one in result]
    wrong = list(_errors(by_base))
    for base, result in by_base.items():
        apart = [one.difference for one in result if one.difference] if isinstance(result, list) else []
        wrong += [f"{base}: another token at {one['at']}, gap {one['gap']:.3g}" for one in apart[:1]]
    total = verdict(outcomes)
    counts = f"{len(by_base)} bases, {total['tokens']} tokens, {len(total['ties'])} ties"
    figure = f"{counts}, τ {total['mean_accepted_length']:.2f}"
    return Claim(
        f"fp32, {name}: the tokens of transformers.generate",
        "all, but 1 tie in 5,000",
        "; ".join([figure, *wrong]),
        total["exact"] and not wrong,
    )


def _agrees(name: str, by_base: dict[str, list[GuidedRun] | str]) -> Claim:
    answers = [one for result in by_base.values() if isinstance(result, list) for one in result]
    tokens, gaps = sum(one.tokens for one in answers), [gap for one in answers for gap in one.gaps]
    share, wrong = 1 - len(gaps) / max(tokens, 1), list(_errors(by_base))
    figure = f"{len(by_base)} bases, {share:.1%} of {tokens} tokens, largest gap {max(gaps, default=0):.2g}"
    return Claim(
        f"bf16, {name}: agrees with transformers.generate",
        f"≥ {AGREEMENT_GOAL:.0%} of tokens",
        "; ".join([figure, *wrong]),
        share >= AGREEMENT_GOAL and not wrong,
    )


def _errors(by_base: dict[str, list[Any] | str]) -> Iterator[str]:
    return (f"{base}: {result}" for base, result in by_base.items() if isinstance(result, str))


def graphs(bench: Bench) -> Findings:
    """CUDA graphs are captured and replayed with the same results as eager mode; also on a GPU that is not current, if
    there are two."""
    findings = on_device(bench, bench.device)
    if bench.dry or torch.cuda.device_count() < 2:
        return findings + Findings([Claim("graphs on a GPU that is not the current one", "as above", "one GPU here")])
    other = torch.device("cuda", 1 - torch.cuda.current_device() % 2)
    return findings + on_device(bench, other)


def on_device(bench: Bench, device: torch.device) -> Findings:
    """Both claims for one device, and milliseconds of a forward pass of 1 and 8 nodes with and without graphs."""
    target, eager = two_targets(bench.scratch / "graphs", device)
    own = target.base.forward.graphs or GraphedForward(target.base.forward, capture=False)
    prompt = [3 + 7 * i % 300 for i in range(GRAPH_PROMPT)]
    apart, spent = 0.0, {}
    for one in (target, eager):
        one.prefill(prompt, layers=(0, 2))
    for _ in range(TREES):
        apart = max(apart, one_tree(target, eager, own))
    for name, one, used in (("graphs", target, own), ("none", eager, None)):
        one.forward.graphs = used
        spent[name] = {nodes: round(ms, 3) for nodes, ms in measure_forward(one, (1, 8), rounds=9).items()}
    replays = target.cache.replays.values()
    captured = sum(replay.graph is not None for replay in replays)
    claims = [
        bench.gpu_claim(
            f"graphs captured, {device}", "all", f"{captured} of {len(replays)}", captured == len(replays) > 1
        ),
        Claim(f"a replay gives the forward's logits, {device}", f"within {CLOSE:g}", f"{apart:.2g}", apart <= CLOSE),
    ]
    return Findings(claims, {f"{device}: ms by nodes with graphs": spent["graphs"], "without": spent["none"]})


def two_targets(folder: Path, device: torch.device) -> tuple[Target, Target]:
    """Two targets of one tiny base model on `device`, with reserved and zeroed caches, as graphs need them."""
    base = load_base(folder if folder.exists() else make_tiny_base(folder), device=str(device))
    targets = fast_target(base, GRAPH_CONTEXT), fast_target(base, GRAPH_CONTEXT)
    heads = targets[0].forward.heads
    for target in targets:
        target.cache.reserve(heads.keys, heads.dim, base.dtype, base.device, 1)
        target.cache.keys.zero_(), target.cache.values.zero_()
    return targets


def one_tree(target: Target, eager: Target, own: GraphedForward) -> float:
    """Score one tree with and without graphs and commit a path in both; returns the largest difference."""
    shape = shape_from_choices(CHOICES)
    first = 20 + len(target.ids) % 200
    tree, layers = DraftTree(tuple(range(first, first + len(shape))), shape), (0, 2)
    scores: list[ForwardOutput] = []
    for one, used in ((target, own), (eager, None)):
        one.forward.graphs = used
        scores.append(one.score(tree, layers))
        one.commit(tree, (0, *shape.paths[0]))
    a, b = scores
    return max(float((a.logits - b.logits).abs().max()), float((a.features - b.features).abs().max()))
