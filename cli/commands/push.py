"""`speculoos push`: uploads a checkpoint in a server's format to a repository of the Hub."""

from typing import Annotated

import typer

from cli.commands.export import checks, find
from cli.console import Json, finish, table
from formats import find_format
from ops.homes import open_home
from speculoos.reporting import ConsoleReporter


def push(
    checkpoint: Annotated[str, typer.Argument(help="MODEL@DRAFT, or a draft's name or id.")],
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
    files = export.files()
    result = {
        "repo": repo,
        "url": export.url,
        "private": not public,
        "checkpoint": row.full_name,
        "format": form,
        "for": report.servers,
        "base_model": row.facts.hub_id,
        "files": files,
        "bytes": sum(file["bytes"] for file in files),
        "passed": report.passed,
        "checks": [vars(check) for check in report.checks],
        "dry_run": dry_run,
    }
    if dry_run:
        rows = [(file["name"], f"{file['bytes']:,}", file["sha256"][:12]) for file in files]
        end = (
            f"Dry run: would upload {result['bytes'] / 1e6:,.1f} MB for {result['for']} to {result['url']} "
            f"({'public' if public else 'private'} if it is created); files with other names are kept. "
            "Nothing was sent."
        )
        finish(result, as_json, "\n".join([table(rows, ("file", "bytes", "sha256")), *checks(report), end]))
        return 0
    commit = export.send(public)
    text = f"{export.url} holds {row.full_name} for {result['for']} (commit {commit[:12]})."
    finish({**result, "commit": commit}, as_json, text)
    return 0
