"""A tiny base, and an import of what a writer made for it."""

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
    """What the limited child does, in this process."""
    asked = {"base_name": "tiny", "base_sha256": "b" * 64, "shown": folder.name, **more}
    return convert(asdict(Conversion(str(folder), str(scratch), str(base), **asked)))


@pytest.fixture(scope="session")
def child() -> Iterator[LimitedChild]:
    with LimitedChild(run.MEMORY, (run.WORK.partition(":")[0],)) as made:
        yield made


@pytest.fixture
def kept_child(child: LimitedChild, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports of this test read in one child that stays: to start one takes seconds."""

    def call(function: str, *arguments: Any, seconds: float, memory: int) -> Any:  # its own, the least there is
        return child.call(function, *arguments, seconds=seconds)

    monkeypatch.setattr(run, "run_limited", call)


@pytest.fixture(scope="session")
def base(tiny_base: Path) -> LoadedBase:
    return load_base(tiny_base)


@pytest.fixture
def imported(tiny_base: Path, tmp_path: Path) -> Imported:
    """imported(made, file=…, layout="", **config) → the checkpoint's folder and the report, in this process."""

    def bring(made: Any, file: str = "model.safetensors", layout: str = "", **changes: Any) -> Any:
        folder = write(tmp_path / "published", made, file, **changes)
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        return scratch / "draft", read_here(folder, tiny_base, scratch, layout=layout)

    return bring
