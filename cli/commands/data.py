"""speculoos data: prompts that were imported and conversations that were generated from them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands.estimating import EstimateOnly, show_estimate
from cli.commands.fields import request_options
from cli.console import Json, Wait, figures, finish, listed, say, table
from speculoos.errors import BadInput
from speculoos.settings import Settings
from workers.jobs.import_prompts import FIELDS_HELP, HUB
from workers.jobs.request import Request
from workers.jobs.requests import GenerateData, ImportAnswered, ImportPrompts

app = listed("Prompt sets and generated conversations.")
Name = Annotated[str, typer.Option(help="Name of the new data set.")]
Reference = Annotated[str, typer.Argument(help="Name or id of a data set.")]
SHOWN_BAD = 20


@app.command("import")
@request_options(ImportPrompts, "limit", "suite")
def import_file(
    file: Annotated[
        str, typer.Argument(help="JSONL, JSON, CSV or parquet file, or a data set on the hub: hub:OWNER/NAME[:SPLIT].")
    ] = "",
    name: Name = "",
    answered: Annotated[
        bool, typer.Option("--answered", help="Keep the answers: data to train on, written by --model or its equal.")
    ] = False,
    model: Annotated[str, typer.Option(help="Base model that wrote the answers; with --answered.")] = "",
    fields: Annotated[list[str] | None, typer.Option("--field", help=FIELDS_HELP)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Of a data set on the hub: say what would be fetched, and fetch nothing.")
    ] = False,
    estimate: EstimateOnly = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Read a file of prompts, or with --answered of conversations; rows that cannot be used are reported by line and
    left out. A suite (--suite) must be whole and in its own form."""
    from cli.commands.targets import base_id
    from cli.follow import run_request
    from ops.homes import open_home

    if answered != bool(model):
        raise BadInput("Say --answered together with --model BASE, the model that wrote the answers.")
    suite = _suite(options["suite"], answered)
    settings = open_home()
    if file.startswith(HUB):
        if suite:
            raise BadInput("A suite is read from its own file, or fetched when none is named; leave the hub's id out.")
        given = _on_the_hub(settings, file, as_json, dry_run)
    elif dry_run:
        raise BadInput("--dry-run is for data sets on the hub, hub:OWNER/NAME; a file is read where it lies.")
    else:
        given = _here(file, suite)
    if dry_run:
        return None
    given |= {"limit": options["limit"], "fields": _fields(fields, suite)}
    if answered:
        request: Request = ImportAnswered(base_id=base_id(settings, model), **given)
    else:
        request = ImportPrompts(**given, suite=suite)
    if estimate:
        return show_estimate(settings, request, as_json)
    result = describe(settings, run_request(settings, request, name).request["dataset_id"])
    return finish(result, as_json, _imported(result))


def _fields(pairs: list[str] | None, suite: str) -> dict[str, str]:
    from corpus.mapping import parse_mapping

    if pairs and suite:
        raise BadInput("A suite is read in its own form; leave --field out.")
    return parse_mapping(pairs or ())


def _here(file: str, suite: str) -> dict[str, Any]:
    """Where the file is; nowhere for a suite of the hub."""
    if suite and not file:
        return {"path": ""}
    path = Path(file).expanduser().resolve()
    if not file or not path.is_file():
        raise BadInput(f"{file}: there is no such file." if file else "Name the file to import.")
    return {"path": str(path), "original_name": path.name}


def _suite(name: str, answered: bool) -> str:
    from speculoos.suites import SUITES

    if name and name not in SUITES:
        raise BadInput(f"--suite {name}: there is no such suite; known are {', '.join(SUITES)}.")
    if name and answered:
        raise BadInput("A suite has questions alone; leave --answered out.")
    return name


def _on_the_hub(settings: Settings, text: str, as_json: bool, only_say: bool) -> dict[str, Any]:
    """Say which files would be fetched."""
    from models.hub_data import Location, look_up

    location = Location.parse(text)
    listing = look_up(location, settings.hf_token)
    files = [{"name": name, "bytes": size} for name, (size, _) in listing.files.items()]
    lines = [f"{listing.repo} at {listing.revision[:12]}: {len(files)} files, {listing.size / 1e6:,.1f} MB"]
    lines += [f"  {each['bytes'] / 1e6:>10,.1f} MB  {each['name']}" for each in files]
    if only_say:
        found = {"repo": listing.repo, "revision": listing.revision, "bytes": listing.size, "files": files}
        finish(found, as_json, "\n".join(lines))
    else:
        say("\n".join(lines))
    return {"path": str(location), "original_name": location.title}


@app.command()
def add_builtin(
    name: Annotated[str, typer.Argument(help="quickstart-prompts or built-in-questions; none: list them.")] = "",
    as_json: Json = False,
) -> None:
    """Add a set that comes with the workbench, once: prompts to begin with, or the questions drafts are measured on."""
    from cli.follow import run_jobs
    from ops.homes import open_home
    from speculoos.people import current_user
    from tracking.db import reading
    from workers.jobs.add_builtin import add, added_sets
    from workers.jobs.builtin import BUILT_IN, find_built_in

    settings = open_home()
    with reading(settings) as session:
        here = added_sets(session)
    if not name:
        sets = [{"name": b.name, "rows": b.rows, "dataset_id": here.get(b.name, "")} for b in BUILT_IN.values()]
        rows = [(each["name"], each["rows"], "here" if each["dataset_id"] else "not added") for each in sets]
        return finish(sets, as_json, table(rows, ("name", "rows", "")))
    find_built_in(name)
    said = f"“{name}” is here already.\n" if name in here else ""
    if name not in here:
        asked = {"user": current_user(), "settings": settings}
        (job,) = run_jobs(settings, lambda: [add(name, **asked).job], "io", wait=True)
        here[name] = job.request["dataset_id"]
    result = describe(settings, here[name])
    return finish({**result, "already": bool(said)}, as_json, said + _imported(result))


@app.command()
@request_options(GenerateData)
def generate(
    prompts: Annotated[str, typer.Option(help="Data set of prompts.")],
    model: Annotated[
        str, typer.Option(help="Base model that answers; with --endpoint the one it serves, for exact token ids.")
    ] = "",
    name: Name = "",
    estimate: EstimateOnly = False,
    wait: Wait = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Answer prompts with a base model (or an endpoint): the training data for its draft."""
    from cli.follow import run_request
    from ops.homes import open_home
    from tracking import queries
    from tracking.db import reading

    if not (model or options["endpoint"]):
        raise BadInput("Name the model that answers: --model NAME, or --endpoint NAME.")
    settings = open_home()
    with reading(settings) as session:
        source_id = queries.find_dataset(session, prompts).id
        base_id = queries.find_base(session, model).id if model else ""
    request = GenerateData(source_id=source_id, base_id=base_id, **options)
    if estimate:
        return show_estimate(settings, request, as_json)
    return _generated(settings, run_request(settings, request, name, wait), as_json)


@app.command()
def extend(
    reference: Reference,
    samples: Annotated[int | None, typer.Option(min=1, help="Answers each prompt shall have.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts that shall be answered.")] = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Generate more into a data set: further answers to each prompt, or answers to further prompts."""
    from cli.follow import run_jobs
    from ops.homes import open_home
    from speculoos.people import current_user
    from tracking import queries
    from tracking.db import reading
    from workers.jobs import extend as asking

    settings = open_home()
    with reading(settings) as session:
        row = queries.find_dataset(session, reference)
        queue = "io" if (row.config or {}).get("endpoint") else "gpu"
    wanted = {"samples": samples, "limit": limit, "user": current_user(), "settings": settings}
    (job,) = run_jobs(settings, lambda: [asking.extend(row.id, **wanted)], queue, wait=wait)
    _generated(settings, job, as_json)


def _generated(settings, job, as_json: bool) -> None:  # noqa: ANN001
    found = {**describe(settings, job.request["dataset_id"]), **shards_of(settings, job)}
    found = {"job": job.id, "job_state": job.state, **found}
    finish(found, as_json, figures({k: v for k, v in found.items() if k not in ("bad", "report", "failed")}))


def shards_of(settings, job) -> dict[str, int]:  # noqa: ANN001
    """Into how many shards a generation is divided (one is not divided), and how many of them are done."""
    from tracking import shards
    from tracking.db import reading

    if not job.shards:
        return {"shards": 1, "shards_done": int(job.state == "SUCCEEDED")}
    with reading(settings) as session:
        return {"shards": job.shards, "shards_done": shards.tally(session, job.id).ended_well}


@app.command("list")
def list_data(as_json: Json = False) -> None:
    """Every data set, newest first."""
    from ops.homes import open_home
    from tracking import queries
    from tracking.db import reading

    settings = open_home()
    with reading(settings) as session:
        datasets = [describe(settings, row.id) for row in queries.datasets(session)]
    rows = [(d["name"], d["kind"], d["state"], d["rows"], d["bad_rows"]) for d in datasets]
    finish(datasets, as_json, table(rows, ("name", "kind", "state", "rows", "bad rows")))


@app.command()
def show(reference: Reference, as_json: Json = False) -> None:
    """One data set: counts, bad rows, and the first conversation."""
    from ops.homes import open_home

    result = describe(open_home(), reference)
    finish(result, as_json, _imported(result))


@app.command("export")
def export_data(
    reference: Reference,
    output: Annotated[
        Path | None, typer.Option("--output", "--out", "-o", help="File or folder to write; default NAME.jsonl here.")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="messages ({role, content}), or conversations ({from, value}, ShareGPT).")
    ] = "messages",
    shard_rows: Annotated[
        int | None, typer.Option(min=1, help="Write files of so many rows into the folder --output, not one file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a data set as one JSONL file, all its shards put together; `data import` reads it again."""
    from models import data_export
    from ops.homes import open_home
    from tracking import queries
    from tracking.db import reading
    from tracking.stored import RowFiles

    data_export.find_row_converter(form)
    settings = open_home()
    with reading(settings) as session:
        row = queries.find_dataset(session, reference)
        queries.must_be_ready(row)
    target = (output or Path()).expanduser().resolve()
    if shard_rows:
        files = data_export.export_shards(RowFiles(settings).local(row), target, shard_rows, form)
        found = {"path": str(target), "format": form, "files": [path.name for path in files]}
        return finish(found, as_json, f"{target}: {len(files):,} files of at most {shard_rows:,} rows")
    if target.is_dir():
        target = target / data_export.file_name(row.name)
    rows = data_export.export_file(RowFiles(settings).local(row), target, form)
    result = {"path": str(target), "format": form, "rows": rows, "bytes": target.stat().st_size}
    return finish(result, as_json, f"{target}: {rows:,} rows ({result['bytes'] / 1e6:.1f} MB)")


@app.command("rm")
def remove(
    reference: Reference,
    force: Annotated[bool, typer.Option("--force", help="Delete it although something was made from it.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a data set with its files."""
    from cli.commands.removing import remove_row
    from tracking import queries

    remove_row(lambda session: queries.find_dataset(session, reference), force, as_json)


def describe(settings, reference: str) -> dict:  # noqa: ANN001
    """A data set as JSON: its row, with the counts of its report beside it."""
    from ops.homes import columns
    from tracking import queries
    from tracking.db import reading

    with reading(settings) as session:
        row = columns(queries.find_dataset(session, reference))
    report = row.pop("report") or {}
    counts = {k: v for k, v in report.items() if k not in row}
    return {**row, "rows_read": report.get("rows_read", row["rows"] + row["bad_rows"]), **counts, "report": report}


def _imported(result: dict) -> str:
    bad = result.get("bad") or []
    lines = [f"{result['name']}: {result['rows_read']} rows read, {result['rows']} good, {result['bad_rows']} bad"]
    if "answer_tokens" in result:
        lines.append(f"  {result['answer_tokens']:,} answer tokens, {result['cut_answers']} answers cut by a limit")
    lines += [f"  line {row['line']}: {row['reason']}" for row in bad[:SHOWN_BAD]]
    return "\n".join(
        lines + ([f"  … and {result['bad_rows'] - SHOWN_BAD} more"] if result["bad_rows"] > SHOWN_BAD else [])
    )
