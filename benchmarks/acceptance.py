"""Compares held-out acceptance of EAGLE-3 with nvidia-modelopt and speculators: equal data, tokens, steps and settings.

    python -m benchmarks.acceptance --data FOLDER --modelopt VENV --speculators VENV --json FILE

Every contender of `benchmarks.training` trains on the same conversations with the starter's answers in the same steps,
with the same AdamW, learning rate and schedule, three unrolled steps, full vocabulary and the base model's LM head.
Then each draft's tensors are loaded into our module and evaluated on held-out conversations in fp32: top-1 by depth and
mean accepted length of a greedy chain of three (`training.acceptance`). Only initialization and loss differ.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.report import Contender, conditions, finish, load_average, table_lines
from benchmarks.training import BenchmarkPlan, add_options, conversations, ours, peers, training_sides
from models.base import load_base
from models.eagle3 import Eagle3Draft
from models.methods import train_config
from models.starter import starter_path
from speculoos.errors import BadInput
from training.acceptance import measure_acceptance
from training.batches import TokenizedConversation, collate, make_batches
from training.eagle3 import Eagle3Method
from training.setup import lr_factor

TRAINED, HELD_OUT = 256, 64
"""Conversations."""
BATCH_TOKENS, LEARNING_RATE, WARM_UP = 512, 1e-3, 0.03


def trained(contenders: Sequence[Contender], plan: BenchmarkPlan, out: Path) -> dict[str, Any]:
    """Train each contender alone; returns losses and versions. Drafts are written to out/NAME."""
    results: dict[str, Any] = {}
    count = len(plan.steps)
    rates = [LEARNING_RATE * lr_factor((i + 0.5) / count, WARM_UP, "cosine") for i in range(count)]
    for contender in contenders:
        with training_sides([contender], "eagle3", plan) as (sides, failed):
            results |= {name: {"not_trained": reason} for name, reason in failed.items()}
            for side in sides:
                losses = [side.ask(step=i, lr=rate)["loss"] for i, rate in enumerate(rates)]
                side.ask(save=str(out / side.name))
                results[side.name] = {"losses": [round(x, 3) for x in losses], "versions": side.facts["versions"]}
                print(f"{side.name}: {count} steps, loss {losses[0]:.2f} → {losses[-1]:.2f}", flush=True)
    return results


@torch.no_grad()
def judged(base: Any, weights: Path, rows: list[TokenizedConversation]) -> dict[str, Any]:
    """Top-1 by depth and mean accepted length of a greedy chain with these weights on held-out conversations."""
    draft = Eagle3Draft.from_base(base)
    missing, unexpected = draft.load_state_dict(load_file(weights), strict=False)
    if unexpected or set(missing) - {"lm_head.weight", "d2t", "t2d"}:
        raise BadInput(f"{weights}: not an EAGLE-3 draft of this shape; missing {missing}, unknown {unexpected}.")
    draft.lm_head.weight.copy_(base.lm_head.weight)
    method = Eagle3Method(train_config("eagle3", train_lm_head=False), base, draft=draft).eval()
    groups = make_batches(rows, BATCH_TOKENS, 0)
    got = measure_acceptance(method, [method.features(collate([rows[i] for i in group])) for group in groups])
    return {"top1_by_depth": [round(x, 4) for x in got.top1()], "mean_accepted_length": round(got.tau, 4)}


def main(arguments: list[str] | None = None) -> None:
    args = add_options(__doc__).parse_args(arguments)
    rows, load = conversations(args.data), load_average()
    if len(rows) < TRAINED + HELD_OUT:
        raise BadInput(f"{args.data} has {len(rows)} conversations; {TRAINED + HELD_OUT} are needed.")
    plan, unseen = BenchmarkPlan.make(rows[:TRAINED], BATCH_TOKENS, epochs=1), rows[-HELD_OUT:]
    with tempfile.TemporaryDirectory() as scratch:
        figures = trained([ours("ours"), *peers(args, "eagle3")], plan, Path(scratch))
        base = load_base(starter_path())
        for name in [name for name, one in figures.items() if "losses" in one]:
            figures[name] |= judged(base, Path(scratch) / name / "draft.safetensors", unseen)
    held_out = {"conversations": len(unseen), "tokens": sum(map(len, unseen))}
    result = conditions(load) | {"data": plan.facts(), "held_out": held_out, "contenders": figures}
    cells = [(name, one.get("top1_by_depth"), one.get("mean_accepted_length")) for name, one in figures.items()]
    finish(result, "\n".join(table_lines("| | top-1 by depth | τ of a greedy chain |", cells)), args.json)


if __name__ == "__main__":
    main()
