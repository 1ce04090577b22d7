"""`speculoos data`: imported prompts and the conversations generated from them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands.fields import EstimateOnly, request_options, show_estimate
from cli.commands.targets import base_id, remove_row
from cli.console import Json, Wait, figures, finish, listed, say, table
from corpus.rows import parse_mapping
from models import data_export
from models.hub_data import Location, look_up
from ops.homes import columns, open_home
from speculoos.errors import BadInput
from speculoos.people import current_user
from speculoos.settings import Settings
from speculoos.suites import SUITES
from tracking import queries, shards
from tracking.db import reading
from tracking.states import JobState
from tracking.stored import RowFiles
from tracking.tables import Job
from workers.jobs.builtin import BUILT_IN, added_sets, find_built_in
from workers.jobs.request import Request
from workers.jobs.requests import GenerateData, ImportAnswered, ImportPrompts
from workers.jobs.transfers import FIELDS_HELP, HUB

app = listed("Prompt sets and generated conversations.")
Name = Annotated[str, typer.Option(help="Name of the new dataset.")]
Reference = Annotated[str, typer.Argument(help="Name or id of a dataset.")]
SHOWN_BAD = 20


@app.command("import")
@request_options(ImportPrompts, "limit", "suite")
def import_file(
    file: Annotated[
        str, typer.Argument(help="JSONL, JSON, CSV or parquet file, or a dataset on the Hub: hub:OWNER/NAME[:SPLIT].")
    ] = "",
    name: Name = "",
    answered: Annotated[
        bool, typer.Option("--answered", help="Keep the responses, which --model generated, as training data.")
    ] = False,
    model: Annotated[str, typer.Option(help="Base model of the responses (or an equal one); with --answered.")] = "",
    columns: Annotated[list[str] | None, typer.Option("--field", help=FIELDS_HELP)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the files of a dataset on the Hub without downloading them.")
    ] = False,
    estimate: EstimateOnly = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Import a file of prompts, or of conversations with --answered. Unusable rows are skipped and reported by line. A
    suite (--suite) must be complete and in its own format."""
    from cli.follow import run_request

    if answered != bool(model):
        raise BadInput("Use --answered together with --model BASE, the model that generated the responses.")
    suite = options["suite"]
    if suite and suite not in SUITES:
        raise BadInput(f"--suite {suite}: there is no such suite; known are {', '.join(SUITES)}.")
    for used, fault in (
        (answered, "A suite contains only prompts; leave --answered out."),
        (
            file.startswith(HUB),
            "A suite is read from its own file, or downloaded without a file; leave the Hub id out.",
        ),
        (columns, "A suite is read in its own format; leave --field out."),
    ):
        if suite and used:
            raise BadInput(fault)
    settings, path = open_home(), Path(file).expanduser().resolve()
    if file.startswith(HUB):
        fields = _hub_fields(settings, file, as_json, dry_run)
    elif dry_run:
        raise BadInput("--dry-run is for datasets on the Hub, hub:OWNER/NAME; a local file is not copied.")
    elif suite and not file:
        fields = {"path": ""}
    elif not file or not path.is_file():
        raise BadInput(f"{file}: there is no such file." if file else "Name the file to import.")
    else:
        fields = {"path": str(path), "original_name": path.name}
    if dry_run:
        return None
    fields |= {"limit": options["limit"], "fields": parse_mapping(columns or ())}
    if answered:
        request: Request = ImportAnswered(base_id=base_id(settings, model), **fields)
    else:
        request = ImportPrompts(**fields, suite=suite)
    if estimate:
        return show_estimate(settings, request, as_json)
    result = describe(settings, run_request(settings, request, name).request["dataset_id"])
    return finish(result, as_json, _summary(result))


def _hub_fields(settings: Settings, text: str, as_json: bool, dry_run: bool) -> dict[str, Any]:
    """Request fields of a dataset on the Hub; prints its files."""
    location = Location.parse(text)
    listing = look_up(location, settings.hf_token)
    files = [{"name": name, "bytes": size} for name, (size, _) in listing.files.items()]
    lines = [f"{listing.repo} at {listing.revision[:12]}: {len(files)} files, {listing.size / 1e6:,.1f} MB"]
    lines += [f"  {each['bytes'] / 1e6:>10,.1f} MB  {each['name']}" for each in files]
    if dry_run:
        result = {"repo": listing.repo, "revision": listing.revision, "bytes": listing.size, "files": files}
        finish(result, as_json, "\n".join(lines))
    else:
        say("\n".join(lines))
    return {"path": str(location), "original_name": location.title}


@app.command()
def add_builtin(
    name: Annotated[str, typer.Argument(help="quickstart-prompts or built-in-questions; empty: list them.")] = "",
    as_json: Json = False,
) -> None:
    """Add a dataset that is included in the workbench, once: prompts for a first draft, or evaluation prompts."""
    from cli.follow import run_jobs
    from workers.jobs.submit import add_built_in

    settings = open_home()
    with reading(settings) as session:
        added = added_sets(session)
    if not name:
        sets = [{"name": b.name, "rows": b.rows, "dataset_id": added.get(b.name, "")} for b in BUILT_IN.values()]
        rows = [(each["name"], each["rows"], "added" if each["dataset_id"] else "not added") for each in sets]
        return finish(sets, as_json, table(rows, ("name", "rows", "")))
    find_built_in(name)
    existed = name in added
    if not existed:
        user = current_user()
        (job,) = run_jobs(settings, lambda: [add_built_in(name, user=user, settings=settings)[1]], "io", wait=True)
        added[name] = job.request["dataset_id"]
    result = describe(settings, added[name])
    message = f"“{name}” was added before.\n" if existed else ""
    return finish({**result, "already": existed}, as_json, message + _summary(result))


@app.command()
@request_options(GenerateData)
def generate(
    prompts: Annotated[str, typer.Option(help="Dataset of prompts.")],
    model: Annotated[
        str, typer.Option(help="Base model that generates; with --endpoint the model it serves, for exact token ids.")
    ] = "",
    name: Name = "",
    estimate: EstimateOnly = False,
    wait: Wait = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Generate responses to prompts with a base model or an endpoint, as training data for a draft."""
    from cli.follow import run_request

    if not (model or options["endpoint"]):
        raise BadInput("Choose the model that generates the responses: --model NAME, or --endpoint NAME.")
    settings = open_home()
    with reading(settings) as session:
        source_id = queries.find_dataset(session, prompts).id
        base_id = queries.find_base(session, model).id if model else ""
    request = GenerateData(source_id=source_id, base_id=base_id, **options)
    if estimate:
        return show_estimate(settings, request, as_json)
    return _print_job(settings, run_request(settings, request, name, wait), as_json)


def _print_job(settings: Settings, job: Job, as_json: bool) -> None:
    """The job with its dataset, and its number of shards (1 if it is not divided) and finished shards."""
    done = int(job.state == "SUCCEEDED")
    if job.shards:
        with reading(settings) as session:
            done = shards.tally(session, job.id).count(JobState.SUCCEEDED)
    dataset = describe(settings, job.request["dataset_id"])
    result = {"job": job.id, "job_state": job.state, **dataset, "shards": job.shards or 1, "shards_done": done}
    finish(result, as_json, figures({k: v for k, v in result.items() if k not in ("bad", "report", "failed")}))


@app.command("list")
def list_data(as_json: Json = False) -> None:
    """Every dataset, newest first."""
    settings = open_home()
    with reading(settings) as session:
        datasets = [describe(settings, row.id) for row in queries.datasets(session)]
    rows = [(d["name"], d["kind"], d["state"], d["rows"], d["bad_rows"]) for d in datasets]
    finish(datasets, as_json, table(rows, ("name", "kind", "state", "rows", "skipped rows")))


@app.command()
def show(reference: Reference, as_json: Json = False) -> None:
    """One dataset: counts, skipped rows, and the first conversation."""
    result = describe(open_home(), reference)
    finish(result, as_json, _summary(result))


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
        int | None, typer.Option(min=1, help="Write files of this many rows into the folder --output.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a dataset as one JSONL file, which `data import` can read."""
    data_export.find_row_converter(form)
    settings = open_home()
    with reading(settings) as session:
        row = queries.find_dataset(session, reference)
        queries.must_be_ready(row)
    target = (output or Path()).expanduser().resolve()
    if shard_rows:
        files = data_export.export_shards(RowFiles(settings).local(row), target, shard_rows, form)
        result = {"path": str(target), "format": form, "files": [path.name for path in files]}
        return finish(result, as_json, f"{target}: {len(files):,} files of at most {shard_rows:,} rows")
    if target.is_dir():
        target = target / data_export.file_name(row.name)
    rows = data_export.export_file(RowFiles(settings).local(row), target, form)
    result = {"path": str(target), "format": form, "rows": rows, "bytes": target.stat().st_size}
    return finish(result, as_json, f"{target}: {rows:,} rows ({result['bytes'] / 1e6:.1f} MB)")


@app.command("rm")
def remove(
    reference: Reference,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if other rows depend on it.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a dataset with its files."""
    remove_row(lambda session: queries.find_dataset(session, reference), force, as_json)


def describe(settings, reference: str) -> dict:
    """A dataset as JSON: its row and the counts of its report."""
    with reading(settings) as session:
        row = columns(queries.find_dataset(session, reference))
    report = row.pop("report") or {}
    counts = {k: v for k, v in report.items() if k not in row}
    return {**row, "rows_read": report.get("rows_read", row["rows"] + row["bad_rows"]), **counts, "report": report}


def _summary(result: dict) -> str:
    lines = [
        f"{result['name']}: {result['rows_read']} rows read, {result['rows']} imported, {result['bad_rows']} skipped"
    ]
    if "answer_tokens" in result:
        lines.append(f"  {result['answer_tokens']:,} response tokens, {result['cut_answers']} truncated responses")
    lines += [f"  line {row['line']}: {row['reason']}" for row in (result.get("bad") or [])[:SHOWN_BAD]]
    if result["bad_rows"] > SHOWN_BAD:
        lines.append(f"  … and {result['bad_rows'] - SHOWN_BAD} more")
    return "\n".join(lines)
