"""What all benchmarks share: options, prompts, machine, Markdown tables and the result file."""

import argparse
import json
import os
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch

from evaluation.machine import describe_machine
from models.chat import render


def make_parser(text: str) -> argparse.ArgumentParser:
    """A parser with the option --json; `text`: the module's docstring, shown as it is."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the result")
    return parser


def add_questions(parser: argparse.ArgumentParser, limit: int, tokens: int = 128) -> None:
    """Add --questions, --limit and --max-tokens."""
    parser.add_argument("--questions", type=Path, required=True, help="JSONL with `turns`, as MT-Bench has them")
    parser.add_argument("--limit", type=int, default=limit, help="number of questions")
    parser.add_argument("--max-tokens", type=int, default=tokens)


def first_turns(tokenizer: Any, questions: Path, limit: int) -> list[list[int]]:
    """Token ids of the first turns of a file's first questions, with chat template."""
    rows = [json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines()[:limit]]
    return [render(tokenizer, [{"role": "user", "content": row["turns"][0]}]) for row in rows]


def load_average() -> float:
    """Load average of the last minute. Call it before the benchmark, which raises it."""
    return round(os.getloadavg()[0], 1)


def conditions(before: float, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Date, machine and load average before and after a benchmark that ends now."""
    machine = describe_machine(torch.device(device))
    return {"date": date.today().isoformat(), "machine": machine, "load": [before, load_average()]}


def finish(result: dict[str, Any], table: str, file: Path | None) -> None:
    """Print the table; write the result to `file` as JSON, if set."""
    print(table)
    if file:
        file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def row(cells: Iterable[Any]) -> str:
    """One line of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def table_lines(head: str, rows: Iterable[Iterable[Any]]) -> list[str]:
    """Lines of a Markdown table with the header line `head`."""
    return [head, "| --- " * (head.count("|") - 1) + "|", *map(row, rows)]


def goal_lines(wanted: Mapping[str, bool]) -> list[str]:
    """One line per goal: whether it is met."""
    return [f"Wanted: {goal}: {'yes' if met else 'NO'}." for goal, met in wanted.items()]


def replace_between(text: str, begin: str, end: str, figures: str) -> str:
    """`text` with `figures` as the new content between the two marks."""
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{figures}\n{end}{rest.partition(end)[2]}"
