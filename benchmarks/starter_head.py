"""Trains the shipped starter head: `python -m benchmarks.starter_head --data DIR --out DIR`.

DIR is the output of `python -m benchmarks.starter_data`. Trains with the recipe eagle3-starter (resuming from the last
checkpoint in OUT; `draft_path=FOLDER` starts from an earlier head), tunes the tree on the built-in questions and writes
the checkpoint with its card to OUT/final. Further arguments (`max_minutes=120`) override settings of the recipe.
Evaluate the head with `--questions`, `python -m benchmarks.decode --checkpoint` and `benchmarks.exactness`.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from corpus.shards import ShardWriter, read_rows, write_summary
from evaluation.acceptance import PASSES, evaluate
from evaluation.questions import built_in, read_questions
from evaluation.tuning import tune
from models.base import load_base
from models.checkpoints import load_draft, read_config, update_draft_config
from models.fetch import read_card
from models.methods.recipes import read_recipe
from models.starter import starter_path
from speculoos.reporting import ConsoleReporter
from training.loop import train
from workers.jobs.arguments import parse_settings

RECIPE = "eagle3-starter"
MAX_TOKENS = 128
MEASURED = (
    *("mean_accepted_length", "acceptance_by_depth", "identical_to_plain", "ties", "prompts"),
    *("speedup", "tokens_per_second", "plain_tokens_per_second"),
)
NOTES = """Trained with Speculoos for the starter model, its own answers only:

    python -m benchmarks.starter_data --prompts FILE --out DATA
    python -m benchmarks.starter_head --data DATA --out OUT {changes}

Data: {rows} answers ({ways}), {tokens:,} tokens of the base's own, at most 160 each; prompts by kind: {kinds}."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=Path, help="JSONL to measure on once trained")
    parser.add_argument("changes", nargs="*", help="setting=value")
    args = parser.parse_args()
    config = read_recipe(RECIPE).config(parse_settings(args.changes))
    card = read_card(starter_path())
    facts = merge(args.data, args.data / "answers", card)
    notes = NOTES.format(changes=" ".join(args.changes), **facts)
    info = {
        "base": "starter",
        "base_sha256": card["weights_sha256"],
        "dataset": f"{facts['rows']:,} answers of the starter",
        "settings": config.to_json(),
        "notes": notes,
    }
    done = train(config, starter_path(), args.data / "answers", args.out, args.out, ConsoleReporter(), info)
    print(json.dumps({"step": done.step, **done.metrics, **keep_tree(done.folder)}))
    if args.questions:
        print(json.dumps(measure(done.folder, args.questions)))


def merge(parts: Path, folder: Path, card: dict[str, Any]) -> dict[str, Any]:
    """Merge the answers of all parts into the dataset `folder`; returns rows, generated tokens and prompts by kind."""
    with ShardWriter(folder) as shards:
        written = {path.parent for name in ("greedy", "sampled") for path in parts.glob(f"{name}-*/shard-*.jsonl")}
        for part in sorted(written):
            for row in read_rows(part):
                shards.add({**row, "id": f"{part.name}/{row['id']}"})
    rows = list(read_rows(folder))
    counts = {"kinds": (row.get("category", "") for row in rows), "ways": (row["id"].split("-")[0] for row in rows)}
    facts = {
        key: ", ".join(f"{name} {count}" for name, count in Counter(names).most_common())
        for key, names in counts.items()
    }
    write_summary(folder, kind="conversations", tokenizer_sha256=card["tokenizer_sha256"], rows=len(rows))
    tokens = sum(end - start for row in rows for start, end in row["loss_spans"])
    return {"rows": len(rows), "tokens": tokens, **facts}


def keep_tree(folder: Path) -> dict[str, Any]:
    """Tune the tree for this machine on built-in questions and store it in the checkpoint."""
    base = load_base(starter_path())
    tuned = tune(base, load_draft(folder, base), built_in()[-16:], ConsoleReporter(), max_tokens=MAX_TOKENS)
    update_draft_config(folder, drafting=tuned.drafting, tuning=tuned.plan.to_json())
    return {"drafting": tuned.drafting, "verdict": tuned.plan.verdict}


def measure(folder: Path, questions: Path, limit: int | None = None, passes: int = PASSES) -> dict[str, Any]:
    """Measure acceptance and speedup on first turns and store them in the checkpoint."""
    base = load_base(starter_path())
    rows = [{**row, "messages": first_turn(row["messages"])} for row in read_questions(questions)[:limit]]
    result = evaluate(base, load_draft(folder, base), rows, ConsoleReporter(), max_tokens=MAX_TOKENS, passes=passes)
    training = read_config(folder)["training"]
    measured = {name: result[name] for name in MEASURED}
    measured |= {"measured_on": f"{questions.parent.name}, first turns", "measured_tokens": result["tokens"]}
    update_draft_config(folder, training={**training, "figures": {**training["figures"], **measured}})
    return measured


def first_turn(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Messages up to and including the first user message."""
    users = [number for number, message in enumerate(messages) if message["role"] == "user"]
    return messages[: users[0] + 1] if users else messages


if __name__ == "__main__":
    main()
