"""`speculoos push`: uploads a checkpoint in a server's format to a repository of the Hub."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands.export import ExportRow, checks, find
from cli.console import Json, finish, table
from formats import find_format
from ops.homes import open_home
from speculoos.reporting import ConsoleReporter

if TYPE_CHECKING:
    from formats.push import HubExport
    from formats.report import ExportReport


def push(
    checkpoint: Annotated[str, typer.Argument(help="MODEL@CHECKPOINT, a checkpoint's name or its id.")],
    repo: Annotated[str, typer.Option(help="OWNER/NAME on the Hub; created if it does not exist.")],
    form: Annotated[str, typer.Option("--format", help="own, or a format of `speculoos export --list`.")] = "own",
    public: Annotated[
        bool, typer.Option("--public/--private", help="Visibility of a new repository; default private.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Create, validate and list the files without network access.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Upload the files of `speculoos export` to a repository of the Hugging Face Hub, after validation."""
    from formats.push import HubExport

    settings = open_home()
    row = find(settings, checkpoint)
    form = find_format(form).name
    export = HubExport(settings.home, row.id, row.path, row.base_path, form, repo, row.facts)
    export.check()
    if not dry_run:
        export.check_access(public)
    row.check()
    report = export.make(row.load_base, ConsoleReporter())
    result = _as_json(row, export, public, report)
    if dry_run:
        finish({**result, "dry_run": True}, as_json, _listing(result, report))
        return 0
    commit = export.send(public)
    text = f"{export.url} holds {row.full_name} for {result['for']} (commit {commit[:12]})."
    finish({**result, "dry_run": False, "commit": commit}, as_json, text)
    return 0


def _as_json(row: ExportRow, export: "HubExport", public: bool, report: "ExportReport") -> dict[str, Any]:
    files = export.files()
    return {
        "repo": export.repo,
        "url": export.url,
        "private": not public,
        "checkpoint": row.full_name,
        "format": export.format,
        "for": report.servers,
        "base_model": row.facts.hub_id,
        "files": files,
        "bytes": sum(file["bytes"] for file in files),
        "passed": report.passed,
        "checks": [vars(check) for check in report.checks],
    }


def _listing(result: dict[str, Any], report: "ExportReport") -> str:
    rows = [(file["name"], f"{file['bytes']:,}", file["sha256"][:12]) for file in result["files"]]
    kind = "private" if result["private"] else "public"
    return "\n".join(
        [
            table(rows, ("file", "bytes", "sha256")),
            *checks(report),
            f"Dry run: would upload {result['bytes'] / 1e6:,.1f} MB for {result['for']} to {result['url']} ({kind} if "
            "it is created); files with other names are kept. Nothing was sent.",
        ]
    )
