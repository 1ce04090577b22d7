"""Answered conversations into tokens and loss masks: tokens a second and core, and what a second attempt tokenises.

    python -m benchmarks.tokenising --prompts FILE --count 100000 --json OUT

The conversations of FILE (JSON lines with answers), repeated up to `--count`, each opened by its number so
that no two are the same, rendered by the starter's chat template. A core's tokens a second are all tokens over the
processor time of the processes that tokenise, their start and the reading of the tokenizer left out, writing included;
peaks of memory are those of this process, which plans and reads, and of the largest other one. The exit status is 1
where a core does fewer than 20,000 tokens a second, or the second attempt tokenises anything.
"""

import argparse
import json
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import conditions, finish, load_average
from corpus.answered import AnsweredRow, read_answered
from corpus.shards import ShardWriter, write_summary
from models.starter import starter_path
from models.tokenizer import load_tokenizer, read_eos_ids
from speculoos.reporting import ConsoleReporter
from training.batches import load_conversations

WANTED = 20_000
"""Tokens a second and core."""
MAX_LENGTH = 2048


def write_rows(file: Path, folder: Path, wanted: int) -> None:
    """A data set of `wanted` different conversations, as an import keeps them but for their tokens."""
    found = [row.to_json() for row in read_answered(file) if isinstance(row, AnsweredRow)]
    with ShardWriter(folder) as shards:
        for number in range(wanted):
            shards.add(numbered(found[number % len(found)], number))
    write_summary(folder, kind="conversations", rows=wanted)


def numbered(row: dict[str, Any], number: int) -> dict[str, Any]:
    """A conversation whose first question begins with its number."""
    first = next(i for i, message in enumerate(row["messages"]) if message["role"] == "user")
    messages = [dict(message) for message in row["messages"]]
    messages[first]["content"] = f"{number}. {messages[first]['content']}"
    return {**row, "id": f"row-{number:07d}", "messages": messages}


def measure(folder: Path, model: Path) -> dict[str, Any]:
    """Two attempts that read the same data set."""
    from training.tokenising import tokenised

    tokenizer = load_tokenizer(model)
    eos_ids = read_eos_ids(model, tokenizer)
    first = tokenised(folder, tokenizer, eos_ids, ConsoleReporter())
    conversations, report = load_conversations(folder, tokenizer, MAX_LENGTH, eos_ids=sorted(eos_ids))
    kept = sum(file.stat().st_size for file in first.folder.iterdir())
    return {
        "conversations": len(conversations),
        "tokens": first.tokens,
        "processes": first.processes,
        "seconds": round(first.seconds, 1),
        "core_seconds": round(first.core_seconds, 1),
        "tokens_per_second_and_core": round(first.tokens / max(first.core_seconds, 1e-9)),
        "bytes_kept": kept,
        "second_attempt_tokens": report.tokenised,
        "peak_memory_mb": {"this": _peak(resource.RUSAGE_SELF), "others": _peak(resource.RUSAGE_CHILDREN)},
    }


def _peak(who: int) -> int:
    return round(resource.getrusage(who).ru_maxrss / 1024)


def table(found: dict[str, Any]) -> str:
    """For people."""
    memory = found["peak_memory_mb"]
    return (
        f"{found['conversations']:,} conversations, {found['tokens']:,} tokens in {found['seconds']} s by "
        f"{found['processes']} processes: {found['tokens_per_second_and_core']:,} tokens/s a core "
        f"(wanted {WANTED:,}); second attempt: {found['second_attempt_tokens']} tokens; "
        f"{found['bytes_kept'] / 1e6:,.0f} MB kept; memory {memory['this']} MB here, {memory['others']} MB elsewhere."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Tokenising of conversations.")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines of answered conversations")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--model", type=Path, default=None, help="folder of the tokenizer; default the starter's")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    before = load_average()
    with tempfile.TemporaryDirectory(prefix="speculoos-tokenising-") as folder:
        write_rows(args.prompts, Path(folder), args.count)
        found = measure(Path(folder), args.model or Path(starter_path()))
    finish({**found, "wanted": WANTED, **conditions(before)}, table(found), args.json)
    print(json.dumps(found["peak_memory_mb"]), file=sys.stderr)
    well = found["tokens_per_second_and_core"] >= WANTED and found["second_attempt_tokens"] == 0
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
