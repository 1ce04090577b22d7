"""Parts of benchmarks.gpu_check: every drafter's output beside transformers, and CUDA graphs beside eager mode.

Uses a tiny random base model of every family, and the starter if installed, with every drafter: fp32 must match token
by token (except ties as in benchmarks.exactness), for bf16 the share of equal tokens counts.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from benchmarks.exactness import Reference, compare, guided, reference, verdict
from benchmarks.report import first_turns
from decoding.drafters import make_drafter
from decoding.drafters.base import Drafter
from decoding.target import Target, fast_target
from decoding.tree import DraftTree, shape_from_choices
from evaluation.questions import BUILT_IN
from models.base import load_base
from models.checkpoints import load_draft, save_draft
from models.dflash import DFlashDraft
from models.eagle import EagleDraft
from models.eagle3 import Eagle3Draft
from models.medusa import MedusaConfig, MedusaHeads
from models.peagle import PEagleDraft
from models.runtime.graphs import GraphedForward
from models.standalone import StandaloneDraft
from models.starter import STARTER_HEAD, starter_path
from tests.decoding.replay import ReplayDrafter
from tests.tiny import FAMILIES, make_tiny_base

AGREEMENT_GOAL = 0.95
CHOICES = [[0, 0, 0, 0], [0, 1, 0], [1, 0], [1, 1]]
DYNAMIC = {"depth": 3, "top_k": 3, "nodes": 10}
TEXTS = ("1 2 3 + 1 2 3 +", "the quick brown fox")
STARTER = "starter"
NOISE = 0.02
# The verified trees start in the first bucket of cache rows (256) and end in the second; each is used several times.
GRAPH_CONTEXT, GRAPH_PROMPT, TREES = 700, 235, 8
CLOSE = 1e-3  # allowed fp32 logit difference between a graph replay and the eager forward pass


class OutOfTime(Exception):
    """The time limit is reached; the part stops."""


@dataclass
class Claim:
    """A claim about GPUs: its goal and the measured figure. `holds` None: not judged."""

    name: str
    goal: str
    figure: str
    holds: bool | None = None


@dataclass
class Bench:
    """Environment of the parts, which add their claims and further figures to it. `deadline`: value of
    time.monotonic(). `dry`: on the CPU with tiny shapes, where only exactness is judged."""

    device: torch.device
    scratch: Path
    deadline: float
    dry: bool = False
    environments: dict[str, Path] = field(default_factory=dict)
    """Virtual environments of compared libraries by name."""
    claims: list[Claim] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def size(self, full: int, dry: int) -> int:
        """A size of a part: `full`, or `dry` in a dry run."""
        return dry if self.dry else full

    def claim(self, name: str, goal: str, figure: str, holds: bool | None) -> None:
        self.claims.append(Claim(name, goal, figure, holds))

    def check_time(self) -> float:
        """Seconds left. Raises OutOfTime once the deadline is past."""
        if (left := self.deadline - time.monotonic()) <= 0:
            raise OutOfTime
        return left

    @cached_property
    def starter(self) -> Path:
        """The starter base model; in a dry run a tiny one."""
        return make_tiny_base(self.scratch / STARTER) if self.dry else starter_path()

    @cached_property
    def head(self) -> Path:
        """The starter's draft model; in a dry run an untrained one."""
        if not self.dry:
            return STARTER_HEAD
        return save_draft(self.scratch / "starter_head", Eagle3Draft.from_base(load_base(self.starter)), {})


# {drafter: (draft model, options)}; None: a drafter of the reference's tokens, on varying paths of a tree
Choices = dict[str, tuple[Any, dict[str, Any]] | None]
Subject = tuple[Target, list[Reference], Choices]


def exactness(bench: Bench) -> None:
    """fp32: the output of every drafter equals transformers, token by token."""
    for name, found in sweep(bench, "float32", compare).items():
        total = verdict([outcome for _, outcome in found])
        wrong = {base: outcome.difference for base, outcome in reversed(found) if outcome.difference}
        counts = f"{len(found)} prompts, {total['tokens']} tokens, {len(total['ties'])} ties"
        figure = f"{counts}, τ {total['mean_accepted_length']:.2f}"
        figure += "".join(f"; {base}: another token at {d['at']}, gap {d['gap']:.3g}" for base, d in wrong.items())
        claim = f"fp32, {name}: the tokens of transformers.generate"
        bench.claim(claim, "all, but 1 tie in 5,000", figure, total["exact"])


def agreement(bench: Bench) -> None:
    """bf16: the output of every drafter equals transformers except for rounding."""
    for name, found in sweep(bench, "bfloat16", follow_reference).items():
        tokens, gaps = sum(count for _, (count, _) in found), [gap for _, (_, gaps) in found for gap in gaps]
        share = 1 - len(gaps) / tokens
        figure = f"{share:.1%} of {tokens} tokens, largest gap {max(gaps, default=0):.2g}"
        claim, goal = f"bf16, {name}: agrees with transformers.generate", f"≥ {AGREEMENT_GOAL:.0%} of tokens"
        bench.claim(claim, goal, figure, share >= AGREEMENT_GOAL)


def follow_reference(target: Target, drafter: Drafter, expected: Reference) -> tuple[int, list[float]]:
    """Decode along the reference, continuing with its text after each difference. Returns its number of tokens and its
    logit gap at each token that differs."""
    length = len(expected.tokens)
    return length, [expected.gaps[at] for _, at, _ in guided(target, drafter, expected) if at < length]


def sweep(
    bench: Bench, dtype: str, judge: Callable[[Target, Drafter, Reference], Any]
) -> dict[str, list[tuple[str, Any]]]:
    """{drafter: (base model, result of `judge`) of each prompt}. Raises OutOfTime at the deadline."""
    results = defaultdict(list)
    for name in (*FAMILIES, *([STARTER] if not bench.dry and (bench.starter / "config.json").exists() else [])):
        target, references, choices = starter(bench, dtype) if name == STARTER else tiny(bench, name, dtype)
        for drafter, choice in choices.items():
            bench.check_time()
            results[drafter] += [(name, judge(target, drafter_of(target, choice, one), one)) for one in references]
    return results


def drafter_of(target: Target, choice: tuple[Any, dict[str, Any]] | None, expected: Reference) -> Drafter:
    if choice is None:
        return ReplayDrafter(expected.tokens, shape_from_choices(CHOICES), target.base.vocab_size)
    return make_drafter(target, *choice)


def tiny(bench: Bench, family: str, dtype: str) -> Subject:
    """A tiny random base model of a family, without EOS tokens, with every kind of drafter."""
    kind, overrides = FAMILIES[family]
    folder = bench.scratch / family
    if not folder.exists():
        make_tiny_base(folder, kind, num_hidden_layers=2, **overrides)
    theirs, own = (load_base(folder, dtype, str(bench.device)) for _ in range(2))
    theirs.eos_ids = own.eos_ids = frozenset()  # every answer has full length
    prompts = [own.tokenizer(text)["input_ids"] for text in TEXTS[: bench.size(2, 1)]]
    torch.manual_seed(0)  # drafts are made before `fast_target` takes over the weights they start from
    medusa = MedusaHeads.from_base(MedusaConfig(own.hidden_size, own.vocab_size, 4), own)
    draft_ids = torch.arange(0, own.vocab_size, 2)
    eagle, eagle3 = EagleDraft.from_base(own), Eagle3Draft.from_base(own, draft_ids)
    peagle, dflash = PEagleDraft.from_base(own, draft_ids), DFlashDraft.from_base(own, draft_ids)
    standalone = StandaloneDraft.from_base(own, own.num_layers).requires_grad_(False).eval()
    for weight in standalone.parameters():  # without noise it would always agree
        weight += NOISE * torch.randn(weight.shape).to(weight)
    choices: Choices = {
        "plain": (None, {}),
        "n-gram": (None, {"drafter": "ngram", "width": 3, "depth": 4}),
        "Medusa": (medusa, {"tree": CHOICES}),
        "EAGLE-1": (eagle, {"tree": CHOICES}),
        "EAGLE-2 tree": (eagle, DYNAMIC),
        "EAGLE-3": (eagle3, DYNAMIC),
        "P-EAGLE": (peagle, DYNAMIC),
        "DFlash": (dflash, {}),
        "standalone": (standalone, {"tree": CHOICES}),
        "replayed": None,
    }
    return fast_target(own, 256), [reference(theirs, prompt, bench.size(48, 8)) for prompt in prompts], choices


def starter(bench: Bench, dtype: str) -> Subject:
    """The starter with its own head, on the first built-in questions."""
    theirs, own = (load_base(bench.starter, dtype, str(bench.device)) for _ in range(2))
    prompts = first_turns(own.tokenizer, BUILT_IN, 4)
    head = load_draft(bench.head, own)
    choices: Choices = {"plain": (None, {}), "n-gram": (None, {"drafter": "ngram"}), "starter's head": (head, {})}
    return fast_target(own, 1024), [reference(theirs, ids, bench.size(128, 6)) for ids in prompts], choices


def graphs(bench: Bench) -> None:
    """CUDA graphs are captured and replay what eager mode computes; also on a GPU that is not the current one."""
    compare_graphs(bench, bench.device)
    if bench.dry or torch.cuda.device_count() < 2:
        bench.claim("graphs on a GPU that is not the current one", "as above", "one GPU here", None)
    else:
        compare_graphs(bench, torch.device("cuda", 1 - torch.cuda.current_device() % 2))


def compare_graphs(bench: Bench, device: torch.device) -> None:
    """Score trees with and without graphs and commit a path of each."""
    folder = bench.scratch / "graphs"
    base = load_base(folder if folder.exists() else make_tiny_base(folder), device=str(device))
    target, eager = fast_target(base, GRAPH_CONTEXT), fast_target(base, GRAPH_CONTEXT)
    own = base.forward.graphs or GraphedForward(base.forward)
    heads, shape, differences = target.forward.heads, shape_from_choices(CHOICES), []
    for one in (target, eager):  # graphs need reserved and zeroed caches
        one.cache.reserve(heads.num_kv_heads, heads.dim, base.dtype, base.device, 1)
        one.cache.keys.zero_(), one.cache.values.zero_()
        one.prefill([3 + 7 * i % 300 for i in range(GRAPH_PROMPT)], layers=(0, 2))
    for number in range(TREES):
        tree, scores = DraftTree(tuple(range(20 + number, 20 + number + len(shape))), shape), []
        for one, used in ((target, own), (eager, None)):
            one.forward.graphs = used
            scores.append(one.forward_tree(tree, (0, 2)))
            one.commit(tree, (0, *shape.paths[0]))
        a, b = scores
        differences += [(a.logits - b.logits).abs().max().item(), (a.features - b.features).abs().max().item()]
    replays = target.cache.replays.values()
    captured, largest = sum(replay.graph is not None for replay in replays), max(differences)
    holds = None if bench.dry else captured == len(replays) > 1
    bench.claim(f"graphs captured, {device}", "all", f"{captured} of {len(replays)}", holds)
    name = f"a replay gives the forward's logits, {device}"
    bench.claim(name, f"within {CLOSE:g}", f"{largest:.2g}", largest <= CLOSE)
