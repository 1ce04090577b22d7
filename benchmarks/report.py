"""What benchmarks share: options, prompts, machine, Markdown tables, the result file, and contenders as processes.

Contenders run in turn, so that disturbances of the machine affect all of them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evaluation.estimate import DRAWS, INTERVAL_PERCENTILES, SEED
from evaluation.machine import describe_machine
from models.chat import render
from speculoos.errors import Unavailable
from speculoos.settings import PROJECT_ROOT

PEERS = Path(__file__).parent / "peers"


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


def median_interval(values: np.ndarray) -> list[float]:
    """[median, low, high]: 95 % bootstrap interval over the values, one per question."""
    drawn = np.random.default_rng(SEED).integers(len(values), size=(DRAWS, len(values)))
    bounds = np.percentile(np.median(values[drawn], axis=1), INTERVAL_PERCENTILES)
    return [round(float(value), 3) for value in (np.median(values), *bounds)]


def interval_text(interval: Sequence[float], digits: int = 2) -> str:
    """`1.98 (1.90 to 2.05)`."""
    median, low, high = (f"{value:.{digits}f}" for value in interval)
    return f"{median} ({low} to {high})"


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


@dataclass(frozen=True)
class Contender:
    """A script of benchmarks/peers with its own options."""

    name: str
    script: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tree: Path = PROJECT_ROOT
    """Source tree whose modules it imports: this one or a worktree of another commit."""
    python: Path = Path(sys.executable)
    """Interpreter; that of another library's virtual environment does not import our modules."""


class Side:
    """A running contender (`serve` in peers/common.py). Raises Unavailable with its last log line if it ends early."""

    def __init__(self, contender: Contender, options: Mapping[str, Any]):
        self.name = contender.name
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (`close` closes it)
        own = contender.python == Path(sys.executable)
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        environment |= {"PYTHONPATH": str(contender.tree)} if own else {}
        environment |= {"HF_HUB_OFFLINE": "1", "WANDB_DISABLED": "true", "TOKENIZERS_PARALLELISM": "false"}
        environment["OMP_NUM_THREADS"] = str(options["threads"])
        self._process = subprocess.Popen(
            [contender.python, PEERS / contender.script, json.dumps({**options, **contender.options})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=contender.tree,
            env=environment,
        )
        self.facts = self._answer()

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command and return the answer, which includes the peak memory so far."""
        with suppress(BrokenPipeError):  # `_answer` reports the reason
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        if line := self._process.stdout.readline():
            return json.loads(line)
        status = self._process.wait()
        self._log.seek(0)
        last = next((line.strip() for line in reversed(self._log.readlines()) if line.strip()), "no output")
        raise Unavailable(f"{self.name} ended with status {status}: {last}")


@contextmanager
def started(contenders: Sequence[Contender], options: Mapping[str, Any]) -> Iterator[tuple[list[Side], dict[str, str]]]:
    """Yields (running contenders, {name: reason} of those that failed to start). `options` include `threads`."""
    with ExitStack() as stack:
        sides, failed = [], {}
        for contender in contenders:
            try:
                side = Side(contender, options)
            except (OSError, Unavailable) as error:
                failed[contender.name] = str(error)
                continue
            stack.callback(side.close)
            sides.append(side)
        yield sides, failed


def ask_in_turn(sides: Sequence[Side], number: int, **command: Any) -> dict[str, dict[str, Any]]:
    """Ask every contender the same; the order rotates from round to round."""
    first = number % max(len(sides), 1)
    return {side.name: side.ask(**command) for side in (*sides[first:], *sides[:first])}
