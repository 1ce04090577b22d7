"""A tiny base, and an import of what a writer made for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from formats.imports.work import convert
from models.base import Base, load_base
from tests.formats.imports.writers import write

Imported = Callable[..., tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="session")
def base(tiny_base: Path) -> Base:
    return load_base(tiny_base)


@pytest.fixture
def imported(tiny_base: Path, tmp_path: Path) -> Imported:
    """imported(made, file=…, layout="", **config) → the checkpoint's folder and the report, in this process."""

    def bring(made: Any, file: str = "model.safetensors", layout: str = "", **changes: Any) -> Any:
        folder = write(tmp_path / "published", made, file, **changes)
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        report = convert(str(folder), "published", str(tiny_base), "tiny", "b" * 64, str(scratch), layout)
        return scratch / "draft", report

    return bring
