"""speculoos data: prompts that were imported and conversations that were generated from them."""

from pathlib import Path
from typing import Annotated

import typer

from speculoos.console import Json, Wait, figures, finish, table
from speculoos.errors import BadInput
from speculoos.settings import Settings

app = typer.Typer(invoke_without_command=True, help="Prompt sets and generated conversations.")
Name = Annotated[str, typer.Option(help="Name of the new data set.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Take only the first rows.")]
Reference = Annotated[str, typer.Argument(help="Name or id of a data set.")]
SHOWN_BAD = 20


@app.command("import")
def import_file(
    file: Annotated[str, typer.Argument(help="JSONL, JSON, CSV or parquet file.")],
    name: Name = "",
    limit: Limit = None,
    answered: Annotated[
        bool, typer.Option("--answered", help="Keep the answers: data to train on, written by --model or its equal.")
    ] = False,
    model: Annotated[str, typer.Option(help="Base model that wrote the answers; with --answered.")] = "",
    as_json: Json = False,
) -> None:
    """Read a file of prompts, or with --answered of conversations; rows that cannot be used are reported by line and
    left out."""
    from speculoos.follow import run_jobs
    from speculoos.people import account
    from upkeep.homes import open_home
    from workers.ask.requests import ImportAnswered, ImportPrompts
    from workers.ask.submit import submit

    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise BadInput(f"{file}: there is no such file.")
    if answered != bool(model):
        raise BadInput("Say --answered together with --model BASE, the model that wrote the answers.")
    settings = open_home()
    given = {"path": str(path), "original_name": path.name, "limit": limit}
    request = ImportAnswered(base_id=base_id(settings, model), **given) if answered else ImportPrompts(**given)
    (job,) = run_jobs(
        settings, lambda: [submit(request, name=name, user=account(), settings=settings)], ("io",), wait=True
    )
    result = describe(settings, job.request["dataset_id"])
    finish(result, as_json, _imported(result))


def base_id(settings: Settings, reference: str) -> str:
    """The id of a base by its name or id. Raises NotFound."""
    from tracking import queries
    from tracking.db import reading

    with reading(settings) as session:
        return queries.find_base(session, reference).id


@app.command()
def generate(
    prompts: Annotated[str, typer.Option(help="Data set of prompts.")],
    model: Annotated[str, typer.Option(help="Base model that answers.")] = "",
    endpoint: Annotated[
        str, typer.Option(help="Endpoint of settings.toml that answers, in place of a model; several: a,b.")
    ] = "",
    endpoint_model: Annotated[str, typer.Option(help="Model name to ask that endpoint for.")] = "",
    name: Name = "",
    limit: Limit = None,
    system_prompt: Annotated[str, typer.Option(help="System prompt put before each conversation.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of one answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Sample among the likeliest of this mass.")] = 1.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts answered at once.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of sampling.")] = 0,
    max_minutes: Annotated[float | None, typer.Option(help="Stop by the clock and keep what is finished.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Answers to each prompt.")] = 1,
    shard_rows: Annotated[
        int | None, typer.Option(min=1, help="Prompts of a shard, which any worker may take. Default: 5000.")
    ] = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Answer prompts with a base model (or an endpoint): the training data for its draft."""
    from speculoos.follow import run_jobs
    from speculoos.people import account
    from tracking import queries
    from tracking.db import reading
    from upkeep.homes import open_home
    from workers.ask.requests import GenerateData, queue_of
    from workers.ask.submit import submit

    if bool(model) == bool(endpoint):
        raise BadInput("Say who answers: --model NAME or --endpoint NAME, one of the two.")
    settings = open_home()
    with reading(settings) as session:
        source_id = queries.find_dataset(session, prompts).id
        base_id = queries.find_base(session, model).id if model else ""
    request = GenerateData(
        **{"source_id": source_id, "base_id": base_id, "endpoint": endpoint, "endpoint_model": endpoint_model},
        **{"limit": limit, "system_prompt": system_prompt, "max_tokens": max_tokens, "temperature": temperature},
        **{"top_p": top_p, "batch_size": batch_size, "seed": seed, "max_minutes": max_minutes},
        **{"samples": samples, "shard_rows": shard_rows},
    )
    (job,) = run_jobs(
        settings,
        lambda: [submit(request, name=name, user=account(), settings=settings)],
        (queue_of(request),),
        wait=wait,
    )
    _generated(settings, job, as_json)


@app.command()
def extend(
    reference: Reference,
    samples: Annotated[int | None, typer.Option(min=1, help="Answers each prompt shall have.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts that shall be answered.")] = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Generate more into a data set: further answers to each prompt, or answers to further prompts."""
    from speculoos.follow import run_jobs
    from speculoos.people import account
    from tracking import queries
    from tracking.db import reading
    from upkeep.homes import open_home
    from workers.ask import extend as asking

    settings = open_home()
    with reading(settings) as session:
        row = queries.find_dataset(session, reference)
        queue = "io" if (row.config or {}).get("endpoint") else "gpu"
    wanted = {"samples": samples, "limit": limit, "user": account(), "settings": settings}
    (job,) = run_jobs(settings, lambda: [asking.extend(row.id, **wanted)], (queue,), wait=wait)
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


@app.callback()
def without_command(context: typer.Context) -> None:
    """As `list` when no command is named."""
    if context.invoked_subcommand is None:
        list_data()


@app.command("list")
def list_data(as_json: Json = False) -> None:
    """Every data set, newest first."""
    from tracking import queries
    from tracking.db import reading
    from upkeep.homes import open_home

    settings = open_home()
    with reading(settings) as session:
        datasets = [describe(settings, row.id) for row in queries.datasets(session)]
    rows = [(d["name"], d["kind"], d["state"], d["rows"], d["bad_rows"]) for d in datasets]
    finish(datasets, as_json, table(rows, ("name", "kind", "state", "rows", "bad rows")))


@app.command()
def show(reference: Reference, as_json: Json = False) -> None:
    """One data set: counts, bad rows, and the first conversation."""
    from upkeep.homes import open_home

    result = describe(open_home(), reference)
    finish(result, as_json, _imported(result))


@app.command("rm")
def remove(
    reference: Reference,
    force: Annotated[bool, typer.Option("--force", help="Delete it although something was made from it.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a data set with its files."""
    from speculoos.commands.removing import remove_row
    from tracking import queries

    remove_row(lambda session: queries.find_dataset(session, reference), force, as_json)


def describe(settings, reference: str) -> dict:  # noqa: ANN001
    """A data set as JSON: its row, with the counts of its report beside it."""
    from tracking import queries
    from tracking.db import reading
    from upkeep.homes import columns

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
