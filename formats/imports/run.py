"""Bringing a published draft here: from a folder or the hub into a checkpoint folder, whole or not at all.

Everything foreign is read in a child process with limits of time and memory; pickles with code are refused there. No
torch here.
"""

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from models import hub
from speculoos.errors import BadInput, NotFound, SpeculoosError, Unsupported
from speculoos.limited import ChildError, Overrun, run_limited
from speculoos.reporting import Reporter

WORK = "formats.imports.work:convert"
SECONDS, BYTES_PER_SECOND = 300.0, 10e6
MEMORY, MEMORY_PER_BYTE = 3 << 30, 5
"""Bytes of the child beside the weights (torch itself, the base's embeddings), and for each byte of them."""
WEIGHTS = (".safetensors", ".bin", ".pt")


@dataclass(frozen=True)
class Matched:
    """The base that a draft is for: its folder, name and the sum of its weights; `refused` says for each method why it
    cannot carry such a draft ("" where it can)."""

    path: Path
    name: str
    sha256: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)


def import_draft(
    source: str, location: str, base: Matched, folder: Path, reporter: Reporter, token: str = "", layout: str = ""
) -> dict[str, Any]:
    """Make `folder` a checkpoint of the draft at `location` (`source` folder, or hub with owner/name[@revision]).

    `layout` is one of `layouts.LAYOUTS`, found by itself when empty. Returns what `work.convert` says. Raises BadInput,
    Unsupported, NotFound or Unavailable in one sentence; then nothing of it stays.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        folder.rmdir()  # an empty one: it appears when all is well
    with tempfile.TemporaryDirectory(prefix=".import-", dir=folder.parent) as made:
        scratch = Path(made)
        place = _fetched(source, location, scratch / "source", reporter, token)
        shown = location if source == "hub" else place.name
        reporter.log(f"Reading {shown} for {base.name} …")
        report = _in_child(place, shown, base, scratch, layout)
        if reason := base.refused.get(report["method"]):
            raise Unsupported(f"{shown}: {base.name} cannot carry it: {reason}")
        for notice in report["notices"]:
            reporter.log(notice, "warning")
        shutil.rmtree(folder, ignore_errors=True)
        (scratch / "draft").rename(folder)
    return report


def _fetched(source: str, location: str, scratch: Path, reporter: Reporter, token: str) -> Path:
    if source == "hub":
        hub.download(location, scratch, reporter, token, hub.choose_draft)
        return scratch
    place = Path(location).expanduser().resolve()
    if not place.is_dir():
        raise NotFound(f"{location}: there is no such folder.")
    return place


def _in_child(place: Path, shown: str, base: Matched, scratch: Path, layout: str) -> dict[str, Any]:
    """The reading, with limits that grow with the files."""
    size = sum(path.stat().st_size for path in place.iterdir() if path.suffix in WEIGHTS and path.is_file())
    seconds = SECONDS + size / BYTES_PER_SECOND
    memory = min(MEMORY + MEMORY_PER_BYTE * size + 2 * _table_bytes(base), psutil.virtual_memory().available)
    arguments = (str(place), shown, str(base.path), base.name, base.sha256, str(scratch), layout)
    try:
        return run_limited(WORK, *arguments, seconds=seconds, memory=memory)
    except Overrun as error:
        how = f"did not end within {seconds:.0f} s" if error.reason == "time" else "took more memory than it may"
        raise BadInput(f"{shown}: reading the draft {how}; the file is damaged, or this machine too small.") from None
    except ChildError as error:
        raise BadInput(f"{shown}: is no draft that can be read ({error.kind}: {_short(error)}).") from None


def _table_bytes(base: Matched) -> int:
    """Room for the base's embeddings and head, which are compared with the draft's: never more than its files."""
    files = [path.stat().st_size for path in base.path.glob("*.safetensors")]
    return min(sum(files), 4 << 30)


def _short(error: SpeculoosError) -> str:
    return (str(error).strip().splitlines() or ["it said nothing"])[0][:300].rstrip(".")
