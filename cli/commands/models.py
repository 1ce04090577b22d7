"""`speculoos models`: base models and their checkpoints."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands.fields import EstimateOnly, request_options, show_estimate
from cli.commands.targets import base_id, remove_row, resolve
from cli.console import Json, figures, finish, listed, table
from ops.homes import columns, open_home
from speculoos.errors import BadInput
from speculoos.reporting import ConsoleReporter
from tracking import changes, queries
from tracking.db import reading, writing
from workers.jobs.requests import FetchModel, ImportDraft, Quantize

app = listed("Base models and their drafts.")
Reference = Annotated[str, typer.Argument(help="Name or id of a model, or MODEL@DRAFT.")]
SOURCES = ("hub", "folder", "gguf", "starter")
DRAFT_SOURCES = ("folder", "hub")


@app.command("list")
def list_models(as_json: Json = False) -> None:
    """List the base models with their folders and drafts."""
    with reading(open_home()) as session:
        bases, checkpoints = queries.bases(session), queries.checkpoints(session)
    keys = ("name", "path", "state", "source", "location", "id", "weights_sha256")
    own_keys = ("name", "id", "state", "method", "path", "figures")
    entries = []
    for base in bases:
        own = [{key: getattr(c, key) for key in own_keys} for c in checkpoints if c.base_id == base.id]
        values = {key: getattr(base, key) for key in keys}
        entries.append({**values, "parameters": base.card.get("parameters"), "checkpoints": own})
    rows = []
    for base in entries:
        rows.append((base["name"], base["state"], base["source"], base["path"]))
        rows += [(f"  @{c['name']}", c["state"], c["method"], c["path"]) for c in base["checkpoints"]]
    finish(entries, as_json, table(rows, ("name", "state", "kind", "path")))


@app.command()
def add(
    location: Annotated[str, typer.Argument(help="Hub id, folder, GGUF file, or `starter`.")],
    source: Annotated[
        str, typer.Option(help="hub, folder, gguf or starter; default: detected from the location.")
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the model.")] = "",
    estimate: EstimateOnly = False,
    as_json: Json = False,
) -> None:
    """Add a base model: download or convert it, hash its files, write its card."""
    from cli.follow import run_request

    settings, (source, location) = open_home(), _located(location, source, SOURCES)
    if source == "starter":
        return show("starter", as_json)
    request = FetchModel(source=source, location=location)
    if estimate:
        return show_estimate(settings, request, as_json)
    job = run_request(settings, request, name)
    return show(job.request["base_id"], as_json)


@app.command()
@request_options(Quantize)
def quantize(
    model: Annotated[str, typer.Argument(help="Base model: a name or id.")],
    name: Annotated[str, typer.Option(help="Name of the new model.")] = "",
    estimate: EstimateOnly = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Make a new base model with quantized weights, rounded to nearest, which vLLM can serve."""
    from cli.follow import run_request

    settings = open_home()
    request = Quantize(base_id=base_id(settings, model), **options)
    if estimate:
        return show_estimate(settings, request, as_json)
    job = run_request(settings, request, name)
    return show(job.request["quantized_id"], as_json)


@app.command()
def gguf(
    model: Annotated[str, typer.Argument(help="Base model: a name, id or folder.")],
    output: Annotated[Path, typer.Option("--out", "--output", "-o", help="GGUF file to write.")],
    kind: Annotated[str, typer.Option("--type", help="f32, f16, q8_0 or q4_1.")] = "f16",
    as_json: Json = False,
) -> None:
    """Write a base model as a GGUF file for llama.cpp: Llama, Mistral, Qwen2, Qwen3 or Phi-3."""
    from formats.gguf_files import write_base

    file = write_base(resolve(open_home(), model).base_path, output.expanduser(), kind, ConsoleReporter())
    result = {"path": str(file), "type": kind, "bytes": file.stat().st_size}
    finish(result, as_json, f"Wrote {file} ({result['bytes'] / 1e6:.1f} MB).")


@app.command("add-draft")
def add_draft(
    location: Annotated[str, typer.Argument(help="Folder of a published draft, or its Hub id.")],
    model: Annotated[str, typer.Option(help="Base model that the draft was trained for: a name or id.")],
    name: Annotated[str, typer.Option(help="Name of the new draft.")] = "",
    source: Annotated[str, typer.Option(help="folder or hub; default: detected from the location.")] = "",
    layout: Annotated[
        str, typer.Option("--format", help="Format of the draft, such as vllm-eagle3; default: detected.")
    ] = "",
    estimate: EstimateOnly = False,
    as_json: Json = False,
) -> None:
    """Add a published draft: Medusa, EAGLE, P-EAGLE, DFlash, or a small model with the same vocabulary."""
    from cli.follow import run_request

    settings, (source, location) = open_home(), _located(location, source, DRAFT_SOURCES)
    base = base_id(settings, model)
    request = ImportDraft(source=source, location=location, base_id=base, layout=layout)
    if estimate:
        return show_estimate(settings, request, as_json)
    job = run_request(settings, request, name)
    checkpoint_id = job.request["checkpoint_id"]
    return _show(lambda s: (queries.find_base(s, base), queries.find_checkpoint(s, checkpoint_id, base)), as_json)


def _located(location: str, source: str, known: tuple[str, ...]) -> tuple[str, str]:
    """(source, Hub id or absolute path); without a source it is detected from the location and the files on disk."""
    path = Path(location).expanduser()
    if not source and location == "starter":
        source = "starter"
    elif not source and location.endswith(".gguf"):
        source = "gguf"
    elif not source:
        source = "folder" if path.is_dir() or location.startswith((".", "/", "~")) else "hub"
    if source not in known:
        raise BadInput(f"--source {source}: expected one of {', '.join(known)}.")
    return source, str(path.resolve()) if source in ("folder", "gguf") else location


@app.command()
def show(reference: Reference, as_json: Json = False) -> None:
    """Show the card of a base model, or the training and the results of a draft."""
    _show(lambda session: queries.find_model(session, reference), as_json)


def _show(find, as_json: bool) -> None:
    """Print the row of a base model or checkpoint; `find(session)` returns (base, checkpoint or None)."""
    with reading(open_home()) as session:
        base, checkpoint = find(session)
        result = {**columns(checkpoint or base), **({"base": base.name} if checkpoint else {})}
    finish(result, as_json, figures({k: v for k, v in result.items() if v not in ("", None, {})}))


@app.command()
def rename(
    reference: Reference, name: Annotated[str, typer.Argument(help="The new name.")], as_json: Json = False
) -> None:
    """Rename a model or draft; its files do not move."""
    with writing(open_home()) as session:
        base, checkpoint = queries.find_model(session, reference)
        changes.rename(session, checkpoint or base, name)
        result = {"id": (checkpoint or base).id, "name": name}
    finish(result, as_json, f"Renamed to {name}.")


@app.command("rm")
def remove(
    reference: Reference,
    force: Annotated[bool, typer.Option("--force", help="Delete rows that depend on it as well.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a model or draft with its files; a folder outside the home is kept."""

    def find(session):
        base, checkpoint = queries.find_model(session, reference)
        return checkpoint or base

    remove_row(find, force, as_json)
