"""Import of published drafts: from a folder or the hub into a checkpoint folder, which is complete or does not exist.

In a child process with limits on time and memory, `work.convert` opens the source, detects its layout, reads it, checks
it against the base model and writes the checkpoint. Pickles with code are refused. No torch in this module."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from models import hub
from speculoos import resources
from speculoos.checksums import CHECKSUM_FILE
from speculoos.errors import BadInput, NotFound, Unsupported
from speculoos.limited import ChildError, LimitExceeded, run_limited
from speculoos.reporting import Reporter

WORK = "formats.imports.work:convert"
SECONDS, BYTES_PER_SECOND = 300.0, 10e6
MEMORY, MEMORY_PER_BYTE = 3 << 30, 5
"""Memory limit of the child in bytes: for torch itself, and for each byte of the draft's weights."""
MAX_TABLES = 8 << 30
"""Largest memory in bytes for the base model's embeddings and lm_head, with which the draft's are compared."""
WEIGHTS = (".safetensors", ".bin", ".pt")
NO_WEIGHTS = "no weights of a draft; add model.safetensors, pytorch_model.bin or medusa_lm_head.pt."
SCRATCH = ".import-"
"""Prefix of the temporary folder of an import, next to the final folder."""


@dataclass(frozen=True)
class TargetBase:
    """The base model of a draft: folder, name and sha256 of its weights. `refused` gives, by method, the reason why the
    base model does not support it ("" if it does). `hub_id` is set for a base model from the hub."""

    path: Path
    name: str
    sha256: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    hub_id: str = ""


@dataclass(frozen=True)
class Conversion:
    """The child's request: read `folder`, called `shown` in messages and `origin` on the card; write to `scratch`."""

    folder: str
    scratch: str
    base_folder: str
    shown: str
    origin: str = ""
    base_name: str = ""
    base_sha256: str = ""
    layout: str = ""
    base_hub_id: str = ""


def draft_files(files: Sequence[Path]) -> list[Path]:
    """The files that belong to a draft. Raises BadInput if there are no weights, or two files with the same name."""
    names = Counter(path.name for path in files)
    chosen = {*hub.choose_draft({name: (0, "") for name in names}), CHECKSUM_FILE} & {*names}
    if not any(name.endswith(".safetensors") or hub.PICKLES.fullmatch(name) for name in chosen):
        zipped = next((name for name in names if name.lower().endswith(".zip")), "")
        raise BadInput(f"{zipped}: unpack it and choose the files in it." if zipped else f"There are {NO_WEIGHTS}")
    if duplicate := next((name for name in sorted(chosen) if names[name] > 1), ""):
        raise BadInput(f"There are two files called {duplicate}; keep one of them.")
    return [path for path in files if path.name in chosen]


def import_draft(
    source: str, location: str, base: TargetBase, folder: Path, reporter: Reporter, token: str = "", layout: str = ""
) -> dict[str, Any]:
    """Write the draft at `location` to `folder` as a checkpoint. `source` is "folder", or "hub" with
    owner/name[@revision]. `layout` is one of `names.TITLES`, or "" to detect it. Returns the report of `work.convert`.
    On BadInput, Unsupported, NotFound or Unavailable no file remains."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(f"{SCRATCH}*"):  # of a killed attempt
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder.parent) as name:
        scratch = Path(name)
        if source == "hub":
            draft = scratch / "source"
            listing = hub.download(location, draft, reporter, token, hub.choose_draft)
            shown, origin = listing.repo, f"{listing.repo}@{listing.revision}"
        else:
            draft = Path(location).expanduser().resolve()
            if not draft.is_dir():
                raise NotFound(f"{location}: there is no such folder.")
            shown = origin = draft.name
        reporter.log(f"Reading {shown} for {base.name} …")
        values = (str(draft), str(scratch), str(base.path), shown, origin, base.name, base.sha256)
        report = _in_child(Conversion(*values, layout, base.hub_id))
        if reason := base.refused.get(report["method"]):
            raise Unsupported(f"{shown}: {base.name} does not support this draft: {reason}")
        for notice in report["notices"]:
            reporter.log(notice, "warning")
        shutil.rmtree(folder, ignore_errors=True)
        (scratch / "draft").rename(folder)
    return report


def _in_child(conversion: Conversion) -> dict[str, Any]:
    size, shown = _bytes(Path(conversion.folder)), conversion.shown
    seconds = SECONDS + size / BYTES_PER_SECOND
    tables = min(2 * _bytes(Path(conversion.base_folder)), MAX_TABLES)
    memory = min(MEMORY + MEMORY_PER_BYTE * size + tables, resources.available_memory()[0])
    try:
        return run_limited(WORK, asdict(conversion), seconds=seconds, memory=memory)
    except LimitExceeded as error:
        limit = f"did not end within {seconds:.0f} s" if error.reason == "time" else "exceeded its memory limit"
        raise BadInput(
            f"{shown}: reading the draft {limit}; the file is damaged, or this machine is too small."
        ) from None
    except ChildError as error:
        text = (str(error).strip().splitlines() or ["no message"])[0][:300].rstrip(".")
        raise BadInput(f"{shown}: the draft cannot be read ({error.kind}: {text}).") from None


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in WEIGHTS and path.is_file())
