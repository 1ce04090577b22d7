"""An export: written, validated, and there whole or not at all. Callable from a command, a job or a page's download."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from formats import OWN, container, find_format
from formats.checkpoint import CheckpointFiles
from formats.facts import Facts
from formats.plan import ExportPlan
from formats.readme import readme
from formats.report import ExportReport
from formats.validate import REPORT, validate
from models.archive import zip_files
from speculoos.errors import Conflict, Unsupported
from speculoos.files import new_folder, write_json
from speculoos.reporting import Reporter, Silent, check_stop, heeding
from speculoos.sums import SUMS, of_files


def build(
    folder: str | Path,
    base: Any,
    format_name: str,
    target: str | Path,
    reporter: Reporter | None = None,
    facts: Facts | None = None,
    force: bool = False,
    repository: str = "",
) -> ExportReport:
    """Write the checkpoint in `folder` for `base` (a loaded Base in float32) to `target`, a new folder or a `.zip`,
    which unpacks to a folder of its name: the one that the README's commands name.

    An export that fails its validation is not written; with `force` it is, and its README begins by saying so. With
    `repository`, a hub id, the README says how to fetch it from there. Raises Unsupported where the format cannot take
    it or the validation failed, Conflict where `target` is taken, and what reading a checkpoint raises.
    """
    target, reporter, record = Path(target), reporter or Silent(), find_format(format_name)
    checkpoint = check_possible(folder, base.path, format_name, target)
    facts = facts or Facts(Path(base.path).name, str(base.path))  # of a base that is in no list: its folder
    with heeding(reporter), _place(target, reporter) as building:
        plan = record.load("writer", checkpoint.method)(checkpoint, base, facts)
        write(plan, building, reporter)
        report = validate(building, format_name, checkpoint, base, facts, reporter)
        if not report.passed and not force:
            raise Unsupported(
                f"The export failed its validation and was not written: {' '.join(report.failures)}",
                "With --force it is written all the same, and says so.",
            )
        if format_name != OWN:
            card = readme(record, checkpoint, facts, report, _folder_name(repository or target), repository)
            _describe(building, card, report)
    return report


def check_possible(
    folder: str | Path, base_path: str | Path, format_name: str, target: str | Path | None = None
) -> CheckpointFiles:
    """The checkpoint, before a base is loaded for it. Raises Unsupported where the format cannot take it, Conflict
    where a file or a folder that is not empty is at `target`."""
    checkpoint = CheckpointFiles.read(folder, base_path)
    if reason := find_format(format_name).reason(checkpoint):
        raise Unsupported(reason)
    if target:
        check_place(Path(target))
    return checkpoint


def check_place(target: Path) -> None:
    """Raise Conflict where an export cannot be written to `target`: something is there, it is a folder that a zip
    would have to replace, or what leads to it is no folder."""
    check_zip(target)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise Conflict(f"{target} is there already; name another place, or remove it first.")
    nearest = next(parent for parent in target.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise Conflict(f"{nearest} is a file, so nothing can be written below it; name another place.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise Conflict(f"{nearest} cannot be written to by you; name another place.")


def check_zip(target: Path) -> None:
    """Raise Conflict where a zip of that name would have to replace a folder."""
    if target.suffix == ".zip" and target.is_dir():
        raise Conflict(f"{target} is a folder, so no zip can be written there; remove it, or name a file in it.")


def write(plan: ExportPlan, folder: Path, reporter: Reporter) -> None:
    """The files of a plan in `folder`, tensors streamed."""
    written = _counter(reporter, sum(piece.size for piece in plan.tensors) * (2 if plan.pickled else 1), "written")
    if plan.tensors:
        container.write(folder / plan.weights, plan.tensors, written)
        write_json(folder / "config.json", plan.config)
    if plan.pickled:
        container.pickle_of(folder / plan.weights, folder / plan.pickled, written)
    for path in plan.copies:
        shutil.copyfile(path, folder / path.name)
    for name, text in plan.texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def _counter(reporter: Reporter, total: int, what: str) -> Callable[[int], None]:
    """Tells the reporter of bytes; a stop that was asked for is met here."""
    done = 0

    def passed(count: int) -> None:
        nonlocal done
        check_stop(reporter)
        done += count
        reporter.progress(min(done, total), total, "bytes", what)

    return passed


def _describe(folder: Path, card: str, report: ExportReport) -> None:
    """The report, the README and the sums of all files."""
    write_json(folder / REPORT, report.to_json())
    (folder / "README.md").write_text(card, encoding="utf-8")
    files = [path for path in folder.iterdir() if path.is_file()]
    (folder / SUMS).write_text(of_files(files), encoding="utf-8")


def _folder_name(target: str | Path) -> str:
    """What the folder of an export at `target` is called, of a zip once it is unpacked: never one above."""
    name = Path(target).name
    return name.removesuffix(".zip").strip(".") or "export" if name.endswith(".zip") else name


@contextmanager
def _place(target: Path, reporter: Reporter) -> Iterator[Path]:
    """A folder to build in, which becomes `target`, or a zip of that name, when the block ends well."""
    if target.suffix != ".zip":
        if target.is_dir():
            target.rmdir()  # an empty one gives way
        with new_folder(target) as building:
            yield building
            if target.exists():
                raise Conflict(f"{target} was made by someone else meanwhile; name another place, or remove it first.")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as building:
        yield Path(building)
        files = sorted(Path(building).iterdir())
        passed = _counter(reporter, sum(path.stat().st_size for path in files), "zipped")
        zip_files(files, target, passed=passed, folder=_folder_name(target))
