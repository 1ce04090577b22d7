"""Compares held-out acceptance of EAGLE-3 with nvidia-modelopt and speculators: equal data, tokens, steps and settings.

    python -m benchmarks.acceptance --data FOLDER --modelopt VENV --speculators VENV --json FILE

Every contender of `benchmarks.training` trains on the same conversations with the base model's answers in the same
steps, with the same AdamW, learning rate and schedule, three unrolled steps, full vocabulary and the base model's LM
head. Then each draft's tensors are loaded into our module and evaluated on held-out conversations in fp32: top-1 by
depth and mean accepted length of a greedy chain of three (`training.acceptance`). Only initialisation and loss differ.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.plan import BenchmarkPlan, BenchmarkSettings, conversations
from benchmarks.race import PEERS, Contender, add_options, ours, peer, start_contenders
from benchmarks.training import OURS
from evaluation.machine import describe_machine
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
        with start_contenders([contender], "eagle3", args.base, plan, args.threads) as (runners, failed):
            results |= {name: {"not_trained": reason} for name, reason in failed.items()}
            for runner in runners:
                losses = [runner.step(i, plan.lr(i))["loss"] for i in range(len(plan.steps))]
                runner.save(out / runner.name)
                results[runner.name] = {"losses": [round(x, 3) for x in losses], "versions": runner.facts["versions"]}
                print(f"{runner.name}: {len(losses)} steps, loss {losses[0]:.2f} → {losses[-1]:.2f}", flush=True)
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


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--conversations", type=int, default=256, help="trained on")
    parser.add_argument("--held-out", type=int, default=64, help="judged on")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3, help="cosine, 3 %% warm-up")
    parser.add_argument("--batch-tokens", type=int, default=512)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    rows = conversations(args.base, args.data, args.max_length)
    if len(rows) < args.conversations + args.held_out:
        raise BadInput(
            f"{args.data} has {len(rows)} conversations; {args.conversations + args.held_out} are requested."
        )
    seen, unseen = rows[: args.conversations], rows[-args.held_out :]
    settings = replace(BenchmarkSettings(), lr=args.lr, schedule="cosine", warmup_ratio=0.03)
    plan = BenchmarkPlan.make(seen, args.batch_tokens, args.epochs, settings)
    peers = [peer(name, environment) for name in PEERS if (environment := getattr(args, name))]
    with tempfile.TemporaryDirectory() as scratch:
        figures = trained(args, [ours(OURS, args.base_dtype), *peers], plan, Path(scratch))
        base = load_base(args.base)
        for name in [name for name, one in figures.items() if "losses" in one]:
            figures[name] |= judged(base, Path(scratch) / name / "draft.safetensors", unseen, args.batch_tokens)
            print(name, figures[name]["top1_by_depth"], figures[name]["mean_accepted_length"], flush=True)
    result = {
        "date": date.today().isoformat(),
        "machine": describe_machine(torch.device("cpu")),
        "data": plan.facts(),
        "held_out": {"conversations": len(unseen), "tokens": sum(len(row) for row in unseen)},
        "contenders": figures,
    }
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
