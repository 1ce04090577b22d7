"""speculoos push: a checkpoint in a server's format, into a repository of the hub."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands.export import ExportRow, checks, find
from cli.console import Json, finish, table
from speculoos.reporting import ConsoleReporter

if TYPE_CHECKING:
    from formats.push import HubExport
    from formats.report import ExportReport


def push(
    checkpoint: Annotated[str, typer.Argument(help="MODEL@CHECKPOINT, a checkpoint's name or its id.")],
    repo: Annotated[str, typer.Option(help="OWNER/NAME on the hub; made where there is none.")],
    form: Annotated[str, typer.Option("--format", help="own, or a server's: see `speculoos export --list`.")] = "own",
    public: Annotated[
        bool, typer.Option("--public/--private", help="Whether everybody may read it; private unless --public.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Make and validate the files and list them; asks no network.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Put a checkpoint into a repository of the Hugging Face hub: the files of `speculoos export`, validated first."""
    from formats import find_format
    from formats.push import HubExport
    from models.hub_push import check_access, check_repository
    from ops.homes import open_home

    check_repository(repo)
    settings = open_home()
    row = find(settings, checkpoint)
    form = find_format(form).name
    parcel = HubExport(settings.home, row.id, row.path, row.base_path, form, repo, row.facts)
    parcel.check()
    if not dry_run:
        check_access(repo, public)
    row.check()
    report = parcel.make(row.load_base, ConsoleReporter())
    found = _described(row, parcel, public, report)
    if dry_run:
        finish({**found, "dry_run": True}, as_json, _listing(found, report))
        return 0
    pushed = parcel.send(public)
    words = f"{pushed.url} holds {row.full_name} for {found['for']} (commit {pushed.commit[:12]})."
    finish({**found, "dry_run": False, "commit": pushed.commit}, as_json, words)
    return 0


def _described(row: ExportRow, parcel: "HubExport", public: bool, report: "ExportReport") -> dict[str, Any]:
    from models.hub_push import repository_url

    files = parcel.files()
    return {
        **{"repo": parcel.repo, "url": repository_url(parcel.repo), "private": not public},
        **{"checkpoint": row.full_name, "format": parcel.format, "for": report.servers},
        **{"base_model": row.facts.hub_id, "files": files, "bytes": sum(file["bytes"] for file in files)},
        **{"passed": report.passed, "checks": [vars(check) for check in report.checks]},
    }


def _listing(found: dict[str, Any], report: "ExportReport") -> str:
    rows = [(file["name"], f"{file['bytes']:,}", file["sha256"][:12]) for file in found["files"]]
    kind = "private" if found["private"] else "public"
    return "\n".join(
        [
            table(rows, ("file", "bytes", "sha256")),
            *checks(report),
            f"Dry run: these {found['bytes'] / 1e6:,.1f} MB for {found['for']} would go to {found['url']}, made {kind} "
            "unless it is there; files of other names stay. Nothing was sent.",
        ]
    )
