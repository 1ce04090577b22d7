"""speculoos evaluate: acceptance and speed on questions, measured in this process."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from speculoos.commands.generate import CheckpointOption, Draft, Model
from speculoos.console import Json, figures, finish, say
from speculoos.errors import BadInput


def evaluate(
    model: Model,
    checkpoint: CheckpointOption = "",
    questions: Annotated[str, typer.Option(help="Prompt file, or a data set's name; default the built-in set.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Most questions.")] = 20,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most new tokens a turn.")] = 128,
    draft: Draft = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; default SPECULOOS_DEVICE.")] = "",
    as_json: Json = False,
) -> None:
    """Measure drafting against plain decoding: the same questions, greedy, one after the other."""
    from speculoos.commands.targets import resolve
    from upkeep.homes import open_home
    from workers.ask.command_line import parse_settings

    settings = open_home()
    ref = resolve(settings, model, checkpoint)
    rows = load_questions(settings, questions, limit)
    result = {"model": ref.name, "questions": len(rows), "max_tokens": max_tokens}
    result |= measure(settings, ref, rows, max_tokens, parse_settings(draft or ()), device or settings.device)
    if result["shared_with"]:
        say(f"Measured beside {result['shared_with']}: the speeds are lower than alone, the ratio is not exact.")
    finish(result, as_json, figures({k: v for k, v in result.items() if not isinstance(v, list | dict) or k in SHOWN}))


SHOWN = ("acceptance_by_depth", "mean_accepted_length_interval", "speedup_interval")


def measure(
    settings: Any, ref: Any, questions: list[dict[str, Any]], max_tokens: int, options: dict[str, Any], device: str
) -> dict[str, Any]:
    """Load base and draft, and run `evaluation.acceptance.evaluate` on them, holding the device so that jobs wait.
    `shared_with` names what held it already."""
    from evaluation.acceptance import evaluate as run
    from speculoos.commands.targets import load_target
    from speculoos.reporting import ConsoleReporter
    from tracking.device_lease import alone, device_name

    base, draft = load_target(settings, ref, device)
    with alone(settings, device_name(str(base.device)), f"evaluate-{os.getpid()}") as sharing:
        result = run(base, draft, questions, ConsoleReporter(), max_tokens=max_tokens, options=options)
    return {**result, "shared_with": sharing.shared_with}


def load_questions(settings: Any, questions: str, limit: int) -> list[dict[str, Any]]:
    """Rows with `messages` from a file, a data set of this home, or the built-in set."""
    from evaluation.questions import built_in, read_questions
    from tracking import queries
    from tracking.db import reading

    if not questions:
        return built_in(limit)
    if Path(questions).expanduser().is_file():
        return read_questions(Path(questions).expanduser(), limit)
    if "/" in questions or questions.endswith((".jsonl", ".json", ".csv", ".parquet")):
        raise BadInput(f"--questions {questions}: there is no such file.")
    with reading(settings) as session:
        row = queries.find_dataset(session, questions)
        queries.must_be_ready(row)
    return read_questions(Path(row.path), limit)
