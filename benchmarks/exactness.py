"""Compares our greedy output with transformers.generate, token by token, in fp32.

    python -m benchmarks.exactness --questions FILE --limit 80 --max-tokens 128 [--checkpoint FOLDER …] [--json OUT]

The only allowed difference is a tie: at the first difference, the reference's two best logits are within 1e-3 and our
token is one of the two. Ties are printed, and the comparison continues from the reference's prefix. More than one tie
in 5,000 tokens, or any other difference, fails. Reference tokens are cached by the hash of the weights.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import add_questions, finish, first_turns, make_parser
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.drafters.base import Drafter
from decoding.generate import generate
from decoding.stats import summarize
from decoding.step import Step
from decoding.target import Target, common_prefix, fast_target
from evaluation.ties import TIE
from models.base import LoadedBase, load_base
from models.checkpoints import load_draft
from models.fetch import read_card
from models.starter import starter_path
from speculoos.files import write_json

TIES_ALLOWED = 1 / 5000


@dataclass(frozen=True)
class Reference:
    """Tokens of transformers.generate after `prompt`, with the second-best token and the logit gap at each position."""

    prompt: list[int]
    tokens: list[int]
    second: list[int]
    gaps: list[float]


@dataclass
class ExactnessOutcome:
    """Comparison of one prompt: indices of ties, the first other difference (ours, theirs, gap), and our steps."""

    tokens: int
    ties: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list, compare=False)
    difference: dict[str, Any] | None = None


def reference(base: LoadedBase, prompt: Sequence[int], max_tokens: int) -> Reference:
    """Greedy decoding with transformers until an EOS token. `base` must use transformers' forward pass."""
    ids = torch.tensor([prompt], device=base.device)
    ends = sorted(base.eos_ids) or None
    out = base.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=ends[0] if ends else 0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = [row[0].float().topk(2) for row in out.logits]
    tokens = out.sequences[0, len(prompt) :].tolist()
    second = [next(i for i in b.indices.tolist() if i != t) for b, t in zip(best, tokens, strict=True)]
    return Reference(list(prompt), tokens, second, [float(b.values[0] - b.values[1]) for b in best])


def guided(target: Target, drafter: Drafter, expected: Reference) -> Iterator[tuple[list[Step], int, int | None]]:
    """Decode from the reference's prompt, and again from the reference's prefix after each difference. Yields (steps,
    index of the first difference or the reference's length, our token there or None for an early end)."""
    start = 0
    while start < len(expected.tokens):
        prompt = expected.prompt + expected.tokens[:start]
        steps = list(generate(target, drafter, prompt, GenerateConfig(max_tokens=len(expected.tokens) - start)))
        ours = [t.id for step in steps for t in step.tokens]
        same = common_prefix(ours, expected.tokens[start:])
        yield steps, start + same, ours[same] if same < len(ours) else None
        start += same + 1


def compare(target: Target, drafter: Drafter, expected: Reference) -> ExactnessOutcome:
    """Compare our tokens with the reference, up to the first difference that is not a tie."""
    outcome = ExactnessOutcome(len(expected.tokens))
    for steps, at, token in guided(target, drafter, expected):
        outcome.steps += steps
        if at == len(expected.tokens):
            break
        if expected.gaps[at] > TIE or token != expected.second[at]:
            outcome.difference = {"at": at, "ours": token, "theirs": expected.tokens[at], "gap": expected.gaps[at]}
            break
        outcome.ties.append(at)
    return outcome


def references(
    folder: Path, prompts: Sequence[list[int]], max_tokens: int, device: str, store: Path
) -> list[Reference]:
    """References of all prompts, cached in `store`."""
    weights = read_card(folder)["weights_sha256"]
    base: LoadedBase | None = None
    results = []
    for number, prompt in enumerate(prompts, 1):
        name = hashlib.sha256(json.dumps([weights, prompt, max_tokens]).encode()).hexdigest()[:32]
        file = store / weights[:16] / f"{name}.json"
        if not file.exists():
            base = base or load_base(folder, device=device)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, asdict(reference(base, prompt, max_tokens)))
            print(f"reference {number}/{len(prompts)}", file=sys.stderr)
        results.append(Reference(**json.loads(file.read_text(encoding="utf-8"))))
    return results


def verdict(outcomes: Sequence[ExactnessOutcome]) -> dict[str, Any]:
    """Totals of one drafter. `exact`: no differences except few enough ties."""
    tokens, ties = sum(o.tokens for o in outcomes), sum(len(o.ties) for o in outcomes)
    differences = [{"prompt": i} | o.difference for i, o in enumerate(outcomes) if o.difference]
    return {
        "exact": not differences and ties <= max(1, tokens * TIES_ALLOWED),
        "prompts": len(outcomes),
        "tokens": tokens,
        "mean_accepted_length": round(summarize(s for o in outcomes for s in o.steps).mean_accepted_length, 4),
        "ties": [{"prompt": i, "at": at} for i, o in enumerate(outcomes) for at in o.ties],
        "differences": differences,
    }


def check(args: argparse.Namespace) -> dict[str, Any]:
    """Compare all drafters with the references."""
    base = load_base(args.model, device=args.device)
    prompts = first_turns(base.tokenizer, args.questions, args.limit)
    expected = references(args.model, prompts, args.max_tokens, args.device, args.store)
    target = fast_target(base, args.context)
    drafters = {name: make_drafter(target, None, {"drafter": name}) for name in ("none", "ngram")}
    drafters |= {str(folder): make_drafter(target, load_draft(folder, base)) for folder in args.checkpoint}
    return {name: verdict([compare(target, drafter, one) for one in expected]) for name, drafter in drafters.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    add_questions(parser, limit=80)
    parser.add_argument("--model", type=Path, default=starter_path())
    parser.add_argument("--checkpoint", type=Path, action="append", default=[], help="a trained draft's folder")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--store", type=Path, default=Path.home() / ".cache" / "speculoos" / "references")
    args = parser.parse_args(arguments)
    result = check(args)
    lines = []
    for name, one in result.items():
        counts = f"{one['tokens']} tokens, {len(one['ties'])} ties, τ {one['mean_accepted_length']:.3f}"
        lines.append(f"{name}: {'exact' if one['exact'] else 'DIFFERENT'}, {counts}")
    finish(result, "\n".join(lines), args.json)
    return 0 if all(one["exact"] for one in result.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
