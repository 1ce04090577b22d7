"""The starter in servers of other projects, as their jobs start them."""

import os
import secrets
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evaluation.questions import read_questions, spread_over_categories
from formats.engines import ENGINES, FILE_TYPES, LaunchOptions
from formats.export import build_export
from formats.gguf_files import write_base
from models.base import LoadedBase
from models.starter import starter_path
from speculoos import settings
from speculoos.reporting import SilentReporter
from speculoos.settings import Endpoint
from workers.child.engine import engine_version, python_command
from workers.child.work.serve import Prepared, started_engine

KEY = "SPECULOOS_BENCHMARK_KEY"
"""Environment variable with the key of all servers."""


def add_engines(parser: ArgumentParser) -> None:
    """Add --llamacpp and --vllm; at least one is needed."""
    for name in ("llamacpp", "vllm"):
        title = ENGINES[name].title
        parser.add_argument(f"--{name}", type=Path, help=f"Python of an environment that contains {title}")


def engines(args: Namespace) -> dict[str, str]:
    """{engine: its Python} of the named environments."""
    return {name: str(path.absolute()) for name in ENGINES if (path := getattr(args, name, None))}


def versions(pythons: dict[str, str]) -> dict[str, str]:
    """{engine: version}. Raises Unsupported for an environment without its engine."""
    return {name: engine_version(ENGINES[name], python, ()) for name, python in pythons.items()}


def first_questions(file: Path, limit: int) -> list[dict[str, Any]]:
    """Rows with the first turns of `limit` questions of a JSONL file, evenly from all categories."""
    rows = spread_over_categories(read_questions(file), limit)
    return [{**row, "messages": row["messages"][:1]} for row in rows]


def export(head: Path, base: LoadedBase, form: str, target: Path) -> Path:
    """The head in the format `form` (a folder, or a file for llama.cpp), validated; an existing one is used again."""
    if not target.exists():
        build_export(head, base, form, target)
    return next(target.glob("*.gguf"), target)


class Here(SilentReporter):
    """What the start of a server reads from a job."""

    def __init__(self) -> None:
        self.settings = settings.load()


@contextmanager
def server(
    name: str, python: str, folder: Path, *, precision: str = "auto", arguments: Sequence[str] = (), **draft: Any
) -> Iterator[Endpoint]:
    """The starter in the engine `name`, ready, until the end of the block. `draft`: `draft`, `method` and `tokens` of
    `LaunchOptions`; `folder` keeps the base model as a file. Raises the errors of `EngineProcess.wait_ready`."""
    engine, base = ENGINES[name], starter_path()
    if engine.base_file:
        base = folder / f"base-{FILE_TYPES[precision]}.gguf"
        if not base.exists():
            write_base(starter_path(), base, FILE_TYPES[precision])
    key = os.environ.setdefault(KEY, f"sk-{secrets.token_hex(32)}")
    launch = LaunchOptions(base, "starter", 0, key, folder, precision=precision, **draft)
    command = python_command(engine, python, ())
    prepared = Prepared(name, engine, engine_version(engine, python, ()), command, launch, tuple(arguments))
    with started_engine(prepared, Here()) as process:
        yield Endpoint(name, f"{process.root}/v1", KEY, "starter", timeout=600.0)
