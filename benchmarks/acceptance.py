"""Compares held-out acceptance of EAGLE-3 with nvidia-modelopt and speculators: equal data, tokens, steps and settings.

    python -m benchmarks.acceptance --data FOLDER --modelopt VENV --speculators VENV --json FILE

Every contender of `benchmarks.training` trains on the same conversations with the base model's answers in the same
steps, with the same AdamW, learning rate and schedule, three unrolled steps, full vocabulary and the base model's LM
head. Then each draft's tensors are loaded into our module and evaluated on held-out conversations in fp32: top-1 by
depth and mean accepted length of a greedy chain of three (`training.acceptance`). Only initialisation and loss differ.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.race import Contender
from benchmarks.report import conditions, finish, load_average, make_parser, table_lines
from benchmarks.training_plan import (
    BenchmarkPlan,
    BenchmarkSettings,
    add_options,
    conversations,
    ours,
    peers,
    training_sides,
)
from models.base import load_base
from models.eagle3 import Eagle3Draft
from models.methods import train_config
from speculoos.errors import BadInput
from training.acceptance import measure_acceptance
from training.batches import TokenisedConversation, collate, make_batches
from training.eagle3 import Eagle3Method


def trained(
    args: argparse.Namespace, contenders: Sequence[Contender], plan: BenchmarkPlan, out: Path
) -> dict[str, Any]:
    """Train each contender alone; returns losses and versions. Drafts are written to out/NAME."""
    results: dict[str, Any] = {}
    for contender in contenders:
        with training_sides([contender], "eagle3", args, plan) as (sides, failed):
            results |= {name: {"not_trained": reason} for name, reason in failed.items()}
            for side in sides:
                losses = [side.ask(step=i, lr=plan.lr(i))["loss"] for i in range(len(plan.steps))]
                side.ask(save=str(out / side.name))
                results[side.name] = {"losses": [round(x, 3) for x in losses], "versions": side.facts["versions"]}
                print(f"{side.name}: {len(losses)} steps, loss {losses[0]:.2f} → {losses[-1]:.2f}", flush=True)
    return results


@torch.no_grad()
def judged(base: Any, weights: Path, rows: list[TokenisedConversation], batch_tokens: int) -> dict[str, Any]:
    """Top-1 by depth and mean accepted length of a greedy chain with these weights on held-out conversations."""
    draft = Eagle3Draft.from_base(base)
    missing, unexpected = draft.load_state_dict(load_file(weights), strict=False)
    if unexpected or set(missing) - {"lm_head.weight", "d2t", "t2d"}:
        raise BadInput(f"{weights}: not an EAGLE-3 draft of this shape; missing {missing}, unknown {unexpected}.")
    draft.lm_head.weight.copy_(base.lm_head.weight)
    method = Eagle3Method(train_config("eagle3", train_lm_head=False), base, draft=draft).eval()
    groups = make_batches(rows, batch_tokens, 0)
    got = measure_acceptance(method, [method.features(collate([rows[i] for i in group])) for group in groups])
    return {"top1_by_depth": [round(x, 4) for x in got.top1()], "mean_accepted_length": round(got.tau, 4)}


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add_options(parser, batch_tokens=512)
    parser.add_argument("--conversations", type=int, default=256, help="trained on")
    parser.add_argument("--held-out", type=int, default=64, help="judged on")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3, help="cosine, 3 %% warm-up")
    args = parser.parse_args(arguments)
    rows, before = conversations(args.base, args.data, args.max_length), load_average()
    wanted = args.conversations + args.held_out
    if len(rows) < wanted:
        raise BadInput(f"{args.data} has {len(rows)} conversations; {wanted} are requested.")
    seen, unseen = rows[: args.conversations], rows[-args.held_out :]
    settings = BenchmarkSettings(lr=args.lr, schedule="cosine", warmup_ratio=0.03)
    plan = BenchmarkPlan.make(seen, args.batch_tokens, args.epochs, settings)
    contenders = [ours("ours", args.base_dtype), *peers(args, "eagle3")[0]]
    with tempfile.TemporaryDirectory() as scratch:
        figures = trained(args, contenders, plan, Path(scratch))
        base = load_base(args.base)
        for name in [name for name, one in figures.items() if "losses" in one]:
            figures[name] |= judged(base, Path(scratch) / name / "draft.safetensors", unseen, args.batch_tokens)
    result = conditions(before) | {
        "data": plan.facts(),
        "held_out": {"conversations": len(unseen), "tokens": sum(len(row) for row in unseen)},
        "contenders": figures,
    }
    cells = [(name, one.get("top1_by_depth"), one.get("mean_accepted_length")) for name, one in figures.items()]
    finish(result, "\n".join(table_lines("| | top-1 by depth | τ of a greedy chain |", cells)), args.json)


if __name__ == "__main__":
    main()
