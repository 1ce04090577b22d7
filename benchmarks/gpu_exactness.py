"""Parts of benchmarks.gpu_check: compare every drafter's output with transformers, and CUDA graphs with eager mode.

Uses a tiny random base model of every family, and the starter if installed, with every drafter: fp32 must match token
by token (except ties as in benchmarks.exactness), for bf16 the share of equal tokens counts.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.exactness import Reference, compare, guided, reference, verdict
from benchmarks.gpu_bench import Bench, first_line
from benchmarks.report import first_turns
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
from tests.decoding.replay import ReplayDrafter
from tests.tiny import FAMILIES, make_tiny_base

AGREEMENT_GOAL = 0.95
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


@dataclass
class Subject:
    """A base model with reference outputs for some prompts, and drafters by name."""

    name: str
    target: Target
    expected: list[Reference]
    drafters: dict[str, Callable[[Reference], Drafter]]


@dataclass
class Sweep:
    """One drafter on all base models: number of bases, (base, result of the comparison) of each prompt, one-line
    errors."""

    bases: int = 0
    results: list[tuple[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def exactness(bench: Bench) -> None:
    """fp32: the output of every drafter equals transformers, token by token."""
    for name, swept in sweep(bench, "float32", compare).items():
        total, wrong = verdict([outcome for _, outcome in swept.results]), list(swept.errors)
        different = {base: outcome.difference for base, outcome in reversed(swept.results) if outcome.difference}
        wrong += [f"{base}: another token at {one['at']}, gap {one['gap']:.3g}" for base, one in different.items()]
        counts = f"{swept.bases} bases, {total['tokens']} tokens, {len(total['ties'])} ties"
        figure = "; ".join([f"{counts}, τ {total['mean_accepted_length']:.2f}", *wrong])
        claim = f"fp32, {name}: the tokens of transformers.generate"
        bench.claim(claim, "all, but 1 tie in 5,000", figure, total["exact"] and not wrong)


def agreement(bench: Bench) -> None:
    """bf16: the output of every drafter equals transformers except for rounding."""
    for name, swept in sweep(bench, "bfloat16", follow_reference).items():
        tokens = sum(count for _, (count, _) in swept.results)
        gaps = [gap for _, (_, found) in swept.results for gap in found]
        share = 1 - len(gaps) / max(tokens, 1)
        counts = f"{swept.bases} bases, {share:.1%} of {tokens} tokens, largest gap {max(gaps, default=0):.2g}"
        claim, figure = f"bf16, {name}: agrees with transformers.generate", "; ".join([counts, *swept.errors])
        holds = share >= AGREEMENT_GOAL and not swept.errors
        bench.claim(claim, f"≥ {AGREEMENT_GOAL:.0%} of tokens", figure, holds)


def follow_reference(target: Target, drafter: Drafter, expected: Reference) -> tuple[int, list[float]]:
    """Decode along the reference, continuing with its text after each difference. Returns its number of tokens and its
    logit gap at each token that differs."""
    length = len(expected.tokens)
    return length, [expected.gaps[at] for _, at, _ in guided(target, drafter, expected) if at < length]


def sweep(bench: Bench, dtype: str, judge: Callable[[Target, Drafter, Reference], Any]) -> dict[str, Sweep]:
    """{drafter: results of `judge` on every base model and prompt}. Raises OutOfTime at the deadline."""
    results: dict[str, Sweep] = defaultdict(Sweep)
    for name in (*FAMILIES, *([STARTER] if not bench.dry and (bench.starter / "config.json").exists() else [])):
        bench.check_time()
        try:
            subject = starter(bench, dtype) if name == STARTER else tiny(bench, name, dtype)
        except Exception as error:  # continue with the other families
            results["every drafter"].errors.append(f"{name}: {first_line(error)}")
            continue
        for drafter, make in subject.drafters.items():
            bench.check_time()
            swept = results[drafter]
            swept.bases += 1
            try:
                found = [judge(subject.target, make(expected), expected) for expected in subject.expected]
                swept.results += [(name, one) for one in found]
            except Exception as error:
                swept.errors.append(f"{name}: {first_line(error)}")
    return results


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
    prompts = first_turns(own.tokenizer, BUILT_IN, 2 * bench.sizes.prompts)
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


def graphs(bench: Bench) -> None:
    """CUDA graphs are captured and replayed with the same results as eager mode; also on a GPU that is not current, if
    there are two."""
    compare_graphs(bench, bench.device)
    if bench.dry or torch.cuda.device_count() < 2:
        bench.claim("graphs on a GPU that is not the current one", "as above", "one GPU here", None)
    else:
        compare_graphs(bench, torch.device("cuda", 1 - torch.cuda.current_device() % 2))


def compare_graphs(bench: Bench, device: torch.device) -> None:
    """Both claims for one device, and milliseconds of a forward pass of 1 and 8 nodes with and without graphs."""
    target, eager = two_targets(bench.scratch / "graphs", device)
    own = target.base.forward.graphs or GraphedForward(target.base.forward, capture=False)
    prompt = [3 + 7 * i % 300 for i in range(GRAPH_PROMPT)]
    for one in (target, eager):
        one.prefill(prompt, layers=(0, 2))
    difference = max(score_and_commit(target, eager, own) for _ in range(TREES))
    for name, one, used in (("with graphs", target, own), ("without", eager, None)):
        one.forward.graphs = used
        times = {nodes: round(ms, 3) for nodes, ms in measure_forward(one, (1, 8), rounds=9).items()}
        bench.figures[f"{device}: ms by nodes {name}"] = times
    replays = target.cache.replays.values()
    captured = sum(replay.graph is not None for replay in replays)
    holds = captured == len(replays) > 1
    bench.gpu_claim(f"graphs captured, {device}", "all", f"{captured} of {len(replays)}", holds)
    name = f"a replay gives the forward's logits, {device}"
    bench.claim(name, f"within {CLOSE:g}", f"{difference:.2g}", difference <= CLOSE)


def two_targets(folder: Path, device: torch.device) -> tuple[Target, Target]:
    """Two targets of one tiny base model on `device`, with reserved and zeroed caches, as graphs need them."""
    base = load_base(folder if folder.exists() else make_tiny_base(folder), device=str(device))
    targets = fast_target(base, GRAPH_CONTEXT), fast_target(base, GRAPH_CONTEXT)
    heads = targets[0].forward.heads
    for target in targets:
        target.cache.reserve(heads.keys, heads.dim, base.dtype, base.device, 1)
        target.cache.keys.zero_(), target.cache.values.zero_()
    return targets


def score_and_commit(target: Target, eager: Target, own: GraphedForward) -> float:
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
