"""Bringing a published draft here: from a folder or the hub into a checkpoint folder, whole or not at all.

Everything foreign is read in a child process with limits of time and memory; pickles with code are refused there. No
torch here.
"""

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from models import hub
from speculoos import room
from speculoos.errors import BadInput, NotFound, SpeculoosError, Unsupported
from speculoos.limited import ChildError, Overrun, run_limited
from speculoos.reporting import Reporter

WORK = "formats.imports.work:convert"
SECONDS, BYTES_PER_SECOND = 300.0, 10e6
MEMORY, MEMORY_PER_BYTE = 3 << 30, 5
"""Bytes of the child for torch itself, and for each byte of the draft's weights."""
MOST_TABLES = 8 << 30
"""Bytes for the base's embeddings and head, which the draft's are compared with: never more than its files."""
WEIGHTS = (".safetensors", ".bin", ".pt")
SCRATCH = ".import-"
"""How the folder begins in which an import gathers, beside the final one."""


@dataclass(frozen=True)
class TargetBase:
    """The base that a draft is for: its folder, name and the sum of its weights; `refused` says for each method why it
    cannot carry such a draft ("" where it can). `hub_id` is set for a base from the hub."""

    path: Path
    name: str
    sha256: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    hub_id: str = ""


@dataclass(frozen=True)
class Conversion:
    """What the child is asked: to read `folder`, called `shown` in messages and `origin` on the card, for a base, and
    to write into `scratch`."""

    folder: str
    scratch: str
    base_folder: str
    shown: str
    origin: str = ""
    base_name: str = ""
    base_sha256: str = ""
    layout: str = ""
    base_hub_id: str = ""


def import_draft(
    source: str, location: str, base: TargetBase, folder: Path, reporter: Reporter, token: str = "", layout: str = ""
) -> dict[str, Any]:
    """Make `folder` a checkpoint of the draft at `location` (`source` folder, or hub with owner/name[@revision]).

    `layout` is one of `names.TITLES`, found by itself when empty. Returns what `work.convert` says. Raises BadInput,
    Unsupported, NotFound or Unavailable in one sentence; then nothing of it stays.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _clear(folder)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder.parent) as name:
        scratch = Path(name)
        place, shown, origin = _fetched(source, location, scratch / "source", reporter, token)
        reporter.log(f"Reading {shown} for {base.name} …")
        named = (str(place), str(scratch), str(base.path), shown, origin, base.name, base.sha256)
        report = _in_child(Conversion(*named, layout, base.hub_id))
        if reason := base.refused.get(report["method"]):
            raise Unsupported(f"{shown}: {base.name} cannot carry it: {reason}")
        for notice in report["notices"]:
            reporter.log(notice, "warning")
        shutil.rmtree(folder, ignore_errors=True)
        (scratch / "draft").rename(folder)
    return report


def _clear(folder: Path) -> None:
    """Remove what an attempt left that was killed, and the folder itself where it is empty: it appears when all is
    well."""
    for left in folder.parent.glob(f"{SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)
    with suppress(OSError):
        folder.rmdir()


def _fetched(source: str, location: str, scratch: Path, reporter: Reporter, token: str) -> tuple[Path, str, str]:
    """The folder, its name in messages, and where the card says it came from."""
    if source == "hub":
        listing = hub.download(location, scratch, reporter, token, hub.choose_draft)
        return scratch, listing.repo, f"{listing.repo}@{listing.revision}"
    place = Path(location).expanduser().resolve()
    if not place.is_dir():
        raise NotFound(f"{location}: there is no such folder.")
    return place, place.name, place.name


def _in_child(conversion: Conversion) -> dict[str, Any]:
    """The reading, with limits that grow with the files."""
    size, shown = _bytes(Path(conversion.folder)), conversion.shown
    seconds = SECONDS + size / BYTES_PER_SECOND
    tables = min(2 * _bytes(Path(conversion.base_folder)), MOST_TABLES)
    memory = min(MEMORY + MEMORY_PER_BYTE * size + tables, room.memory()[0])
    try:
        return run_limited(WORK, asdict(conversion), seconds=seconds, memory=memory)
    except Overrun as error:
        how = f"did not end within {seconds:.0f} s" if error.reason == "time" else "took more memory than it may"
        raise BadInput(f"{shown}: reading the draft {how}; the file is damaged, or this machine too small.") from None
    except ChildError as error:
        raise BadInput(f"{shown}: is no draft that can be read ({error.kind}: {_short(error)}).") from None


def _bytes(folder: Path) -> int:
    """Of the weights in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in WEIGHTS and path.is_file())


def _short(error: SpeculoosError) -> str:
    return (str(error).strip().splitlines() or ["it said nothing"])[0][:300].rstrip(".")
