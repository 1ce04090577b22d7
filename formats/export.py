"""Write and validate an export, for a command, a job or a download. The target is complete or does not exist."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from formats import OWN, find_format
from formats.checkpoint import CheckpointFiles
from formats.facts import CardFacts
from formats.gguf_files import write_gguf
from formats.plan import ExportPlan, byte_counter, write_tensors
from formats.quantized import round_draft
from formats.readme import readme
from formats.report import REPORT, Check, ExportReport
from formats.servers import Format
from models.archive import archive_files, checkpoint_problems, zip_files
from models.checkpoints import load_draft
from speculoos.checksums import CHECKSUM_FILE, checksums_text
from speculoos.errors import BadInput, Conflict, Unsupported
from speculoos.files import new_folder, write_json
from speculoos.reporting import Reporter, SilentReporter


def build_export(
    folder: str | Path,
    base: Any,
    format_name: str,
    target: str | Path,
    reporter: Reporter | None = None,
    facts: CardFacts | None = None,
    force: bool = False,
    repository: str = "",
) -> ExportReport:
    """Write the checkpoint in `folder` for `base` (a LoadedBase in float32) to `target`: a new folder, or a `.zip` that
    unpacks to a folder of the same name, which the README's commands use. An export that fails its validation is
    written only with `force`, and its README then begins with a warning. With `repository`, a hub id, the README says
    how to download the export. Raises Unsupported if the format does not support the checkpoint or the validation
    failed, Conflict if `target` exists, and the errors of CheckpointFiles.read."""
    target, reporter, record = Path(target), reporter or SilentReporter(), find_format(format_name)
    checkpoint = check_export(folder, base.path, format_name, target)
    facts = facts or CardFacts(Path(base.path).name, str(base.path))  # a base model without a row: its folder
    with _building(target, reporter) as building:
        if format_name == OWN:
            plan = ExportPlan(copies=tuple(archive_files(checkpoint.path)))
        else:
            plan = record.plan(checkpoint, base, facts)
        _write(plan, building, reporter)
        report = validate(building, record, checkpoint, base, facts, reporter)
        if not report.passed and not force:
            raise Unsupported(
                f"The export failed its validation and was not written: {' '.join(report.failures)}",
                "With --force it is written with a warning.",
            )
        if format_name != OWN:
            card = readme(record, checkpoint, facts, report, _folder_name(repository or target), repository)
            write_json(building / REPORT, report.to_json())
            (building / "README.md").write_text(card, encoding="utf-8")
            (building / CHECKSUM_FILE).write_text(checksums_text([*building.iterdir()]), encoding="utf-8")
    return report


def check_export(
    folder: str | Path, base_path: str | Path, format_name: str, target: str | Path | None = None
) -> CheckpointFiles:
    """Check an export before its base model is loaded, and return the checkpoint. Raises Unsupported if the format does
    not support the checkpoint, Conflict if it cannot be written to `target` (see `check_target`)."""
    checkpoint = CheckpointFiles.read(folder, base_path)
    if reason := find_format(format_name).reason(checkpoint):
        raise Unsupported(reason)
    if target:
        check_target(Path(target))
    return checkpoint


def check_target(target: Path) -> None:
    """Raise Conflict if an export cannot be written to `target`: a file or a folder that is not empty exists there, a
    zip would replace a folder, or a parent is a file or is not writable."""
    check_zip_target(target)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise Conflict(f"{target} already exists; choose another path, or remove it first.")
    nearest = next(parent for parent in target.absolute().parents if parent.exists())
    if not nearest.is_dir():
        raise Conflict(f"{nearest} is a file, so nothing can be written below it; choose another path.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise Conflict(f"You have no permission to write to {nearest}; choose another path.")


def check_zip_target(target: Path) -> None:
    """Raise Conflict if `target` is a zip and a folder of that name exists."""
    if target.suffix == ".zip" and target.is_dir():
        raise Conflict(f"{target} is a folder, so no zip can be written there; remove it, or choose a file in it.")


def _write(plan: ExportPlan, folder: Path, reporter: Reporter) -> None:
    if plan.weights.endswith(".gguf"):
        write_gguf(folder / plan.weights, plan, byte_counter(reporter, plan.size, "written"))
    elif plan.tensors:
        write_tensors(folder / plan.weights, plan.tensors, byte_counter(reporter, plan.size, "written"))
        write_json(folder / "config.json", plan.config)
    if plan.pickled:
        import torch
        from safetensors.torch import load_file

        torch.save(load_file(folder / plan.weights), folder / plan.pickled)
    for path in plan.copies:
        shutil.copyfile(path, folder / path.name)
    for name, text in plan.texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def validate(
    folder: Path, record: Format, checkpoint: CheckpointFiles, base: Any, facts: CardFacts, reporter: Reporter
) -> ExportReport:
    """The report on the export of `checkpoint` in `folder`: whether the network that the server builds from the files
    drafts the same, for `base` in float32. Faults of the export do not raise; they are checks that did not pass."""
    if record.name == OWN:
        wrong = "; ".join(f"{file} {fault}" for file, fault in checkpoint_problems(folder).items())
        checks, figures = [Check("sums", not wrong, wrong or "SHA256SUMS match")], {}
    else:
        checks, figures = _compared(folder, record, checkpoint, base, reporter)
        checks.insert(0, _same_base(checkpoint, base, facts))
    base_sha256 = facts.sha256 or checkpoint.config.get("base_sha256", "")
    subject = {
        "base": facts.name,
        "base_location": facts.location,
        "base_revision": facts.revision,
        "base_sha256": base_sha256,
        "tokenizer_sha256": checkpoint.tokenizer_sha256,
        "checkpoint": facts.checkpoint,
    }
    servers = record.servers(checkpoint.method)
    return ExportReport(record.name, checkpoint.method, servers, tuple(checks), figures, subject)


def _compared(
    folder: Path, record: Format, checkpoint: CheckpointFiles, base: Any, reporter: Reporter
) -> tuple[list[Check], dict[str, Any]]:
    from formats.proof import compare_drafts

    reporter.log("Rebuilding the draft from the export, as its server does, and comparing logits …")
    try:
        reader, draft = record.load("reader", checkpoint.method)(folder, checkpoint), load_draft(checkpoint.path, base)
        rounded = _rounded(draft, reader, folder, record)
        proof = compare_drafts(draft, reader, base, reporter)
    except (ValueError, KeyError, RuntimeError, OSError, BadInput) as error:
        text = " ".join(str(error.args[0] if isinstance(error, KeyError) else error).split())
        return [Check("logits", False, f"the export cannot be read ({text[:300].rstrip('.')})")], {}
    return [*rounded, *proof.checks()], proof.figures()


def _rounded(draft: Any, reader: Any, folder: Path, record: Format) -> list[Check]:
    """Give the draft the weights of an export that rounds them; the check of their differences."""
    if not record.scheme:
        return []
    if record.unquantized != "gguf":
        return [round_draft(draft, folder / "model.safetensors", record.scheme)]
    from formats.gguf_readers import round_gguf

    return [round_gguf(draft, reader, record.scheme)]


def _same_base(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> Check:
    trained = checkpoint.config.get("base_sha256", "")
    if trained and facts.sha256 and trained != facts.sha256:
        return Check("base", False, f"trained on weights {trained[:12]}…, this base model has {facts.sha256[:12]}….")
    if base.vocab_size != checkpoint.vocab_size:
        detail = f"vocab_size: the base model has {base.vocab_size} rows, not {checkpoint.vocab_size}."
        return Check("base", False, detail)
    return Check("base", True, f"{facts.name}, weights {(facts.sha256 or 'not recorded')[:12]}")


def _folder_name(target: str | Path) -> str:
    """Name of the export's folder; for a zip, of the folder it unpacks to, which is never a parent folder."""
    name = Path(target).name
    return name.removesuffix(".zip").strip(".") or "export" if name.endswith(".zip") else name


@contextmanager
def _building(target: Path, reporter: Reporter) -> Iterator[Path]:
    """A temporary folder that is moved to `target`, or zipped to it, when the block ends without an error."""
    if target.suffix != ".zip":
        if target.is_dir():
            target.rmdir()  # an empty folder is replaced
        with new_folder(target) as building:
            yield building
            if target.exists():
                raise Conflict(
                    f"{target} was created by another program meanwhile; choose another path, or remove it first."
                )
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as building:
        yield Path(building)
        files = sorted(Path(building).iterdir())
        on_bytes = byte_counter(reporter, sum(path.stat().st_size for path in files), "zipped")
        zip_files(files, target, passed=on_bytes, folder=_folder_name(target))
