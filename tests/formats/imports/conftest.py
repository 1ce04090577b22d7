"""A tiny base, and imports of drafts that writers.py writes for it."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from formats.imports import run
from formats.imports.run import Conversion
from formats.imports.work import convert
from models.base import LoadedBase, load_base
from speculoos.limited import LimitedChild
from tests.formats.imports.writers import write

Imported = Callable[..., tuple[Path, dict[str, Any]]]


def read_here(folder: Path, base: Path, scratch: Path, **more: str) -> dict[str, Any]:
    """Import a draft in this process, as the limited child does."""
    options = {"base_name": "tiny", "base_sha256": "b" * 64, "shown": folder.name, **more}
    return convert(asdict(Conversion(str(folder), str(scratch), str(base), **options)))


@pytest.fixture(scope="session")
def child() -> Iterator[LimitedChild]:
    with LimitedChild(run.MEMORY, (run.WORK.partition(":")[0],)) as process:
        yield process


@pytest.fixture
def shared_child(child: LimitedChild, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the imports of this test in one child process, because starting one takes seconds."""

    def call(function: str, *arguments: Any, seconds: float, memory: int) -> Any:  # the child has its own memory limit
        return child.call(function, *arguments, seconds=seconds)

    monkeypatch.setattr(run, "run_limited", call)


@pytest.fixture(scope="session")
def base(tiny_base: Path) -> LoadedBase:
    return load_base(tiny_base)


@pytest.fixture
def imported(tiny_base: Path, tmp_path: Path) -> Imported:
    """imported(published, file=…, layout="", **config) → the checkpoint's folder and the report, in this process."""

    def import_draft(published: Any, file: str = "model.safetensors", layout: str = "", **changes: Any) -> Any:
        folder = write(tmp_path / "published", published, file, **changes)
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        return scratch / "draft", read_here(folder, tiny_base, scratch, layout=layout)

    return import_draft
