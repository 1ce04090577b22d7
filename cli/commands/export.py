"""`speculoos export`: writes a checkpoint as a zip, or in the format of a server."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands.fields import EstimateOnly, show_estimate
from cli.console import Json, finish, say, table
from formats import OWN, find_format
from formats.facts import CardFacts
from formats.options import export_options
from models import archive
from models.starter import installed
from ops.homes import open_home
from speculoos.checksums import ChecksumCache, file_sha256
from speculoos.errors import Unsupported
from speculoos.reporting import ConsoleReporter
from tracking import queries
from tracking.db import reading
from tracking.evaluations import card_figures
from tracking.stored import RowFiles
from workers.jobs.requests import Export

if TYPE_CHECKING:
    from formats.report import ExportReport


def export(
    checkpoint: Annotated[str, typer.Argument(help="MODEL@DRAFT, or a draft's name or id.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "--output",
            "-o",
            help="File or folder to write; default: ./MODEL-DRAFT.zip, or a folder for a server's format.",
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option("--format", help="own, or a server's format: see --list. A zip if --out ends with .zip."),
    ] = "own",
    listing: Annotated[bool, typer.Option("--list", help="List the formats and whether they fit.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write files that fail validation too; README and exit code show it.")
    ] = False,
    prove: Annotated[
        str,
        typer.Option(help="llamacpp, vllm or sglang: first compare the draft here and in that server (servers prove)."),
    ] = "",
    estimate: EstimateOnly = False,
    as_json: Json = False,
) -> int:
    """Write a draft as a zip with checksums, or in a server's format, which is validated by loading it again."""
    settings = open_home()
    row = find(settings, checkpoint)
    if listing:
        choices = [option.to_json() for option in export_options(row.path, row.base_path)]
        rows = [(each["name"], "yes" if each["possible"] else "no", each["reason"] or each["for"]) for each in choices]
        finish(choices, as_json, table(rows, ("format", "possible", "servers, or reason")))
    elif estimate:
        show_estimate(settings, Export(checkpoint_id=row.id, format=find_format(form).name), as_json)
    elif find_format(form).name == OWN:
        _export_own(row, output, as_json)
    else:
        if prove:
            _prove(settings, row, prove, force)
            row = find(settings, checkpoint)  # with the new comparison
        return _export_for_server(row, form, output, force, as_json)
    return 0


def _prove(settings: Any, row: "ExportRow", engine: str, force: bool) -> None:
    """Compare the acceptance in this engine and in a server. Raises Unsupported if it differs, unless `force`."""
    from cli.commands.servers import prove_request, run_proof

    proof = run_proof(settings, prove_request(settings, row.full_name, engine=engine))["proof"]
    if not proof["agrees"] and not force:
        raise Unsupported(f"{proof['verdict']} Nothing was exported.", "--force exports it in spite of this.")
    say(proof["verdict"])


@dataclass(frozen=True)
class ExportRow:
    """A checkpoint that is ready, with its base model, from their rows."""

    id: str
    name: str
    path: str
    sha256: str
    base_path: str
    base_known: Any
    facts: CardFacts
    checksum_cache: ChecksumCache

    @property
    def full_name(self) -> str:
        return f"{self.facts.name}@{self.name}"

    def check(self) -> None:
        """Raises Damaged if the checkpoint's files have changed."""
        archive.check_checkpoint_files(self.path, self.name, self.sha256, self.checksum_cache)

    def load_base(self) -> Any:
        """The base model in float32, for validations. Raises Damaged if its files have changed."""
        from models.base import load_base

        return load_base(self.base_path, "float32", "cpu", self.base_known, self.checksum_cache)


def find(settings: Any, reference: str) -> ExportRow:
    """The checkpoint with this name or id. Raises NotFound, or Conflict if it is not ready."""
    from models.damage import BaseChecksums

    with reading(settings) as session:
        row = queries.find_checkpoint(session, reference)
        queries.must_be_ready(row)
        base = queries.find_base(session, row.base_id)
        facts = CardFacts.of(base, row.name, **card_figures(queries.evaluations(session, row.id)))
        known = BaseChecksums.of(base.weights_sha256, base.tokenizer_sha256, base.card)
    files = RowFiles(settings, installed)
    return ExportRow(
        row.id, row.name, files.local(row), row.sha256, files.local(base), known, facts, ChecksumCache.of(settings)
    )


def _export_own(row: ExportRow, output: Path | None, as_json: bool) -> None:
    from formats.export import check_zip_target

    name = archive.archive_name(row.facts.name, row.name)
    target = (output or Path(name)).expanduser().resolve()
    check_zip_target(target)
    if target.is_dir():
        target = target / name
    row.check()
    archive.write_zip(row.path, target)
    result = {"path": str(target), "bytes": target.stat().st_size, "sha256": file_sha256(target)}
    finish({**result, "checkpoint": row.full_name}, as_json, f"{target} ({result['bytes'] / 1e6:.1f} MB)")


def _export_for_server(row: ExportRow, form: str, output: Path | None, force: bool, as_json: bool) -> int:
    from formats.export import build_export, check_export

    name = archive.archive_name(row.facts.name, f"{row.name}-{form}").removesuffix(".zip")
    target = (output or Path(name)).expanduser().resolve()
    check_export(row.path, row.base_path, form, target)
    row.check()
    report = build_export(row.path, row.load_base(), form, target, ConsoleReporter(), row.facts, force)
    files = [target] if target.is_file() else [path for path in target.iterdir() if path.is_file()]
    result = {"path": str(target), "bytes": sum(path.stat().st_size for path in files), "checkpoint": row.full_name}
    lines = [f"{target}, for {report.servers}", *checks(report), "README.md in it says how to serve it."]
    finish({**result, **report.to_json()}, as_json, "\n".join(lines))
    if not report.passed:
        say(f"Validation failed; this export should not be served: {' '.join(report.failures)}")
    return 0 if report.passed else 1


def checks(report: "ExportReport") -> list[str]:
    """One line per check of a validation."""
    return [f"  {'passed' if check.passed else 'FAILED'}  {check.name}: {check.detail}" for check in report.checks]
