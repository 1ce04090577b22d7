"""Shared code of whole and sharded generations: the answering model, its options and the output folders."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from corpus.conversations import GenerateOptions
from corpus.labels import ServedBase
from corpus.sharding import ShardFolder
from corpus.shards import count_lengths
from speculoos.errors import BadInput, SpeculoosError
from speculoos.files import write_json
from speculoos.settings import Endpoint
from speculoos.store import Store
from tracking import stored
from tracking.tables import Base, Dataset
from workers.child.context import JobContext
from workers.jobs.requests import Evaluate, GenerateData

PREVIEW_ROWS = 20
PARTS = "parts"
"""Subfolder of a data set with shards that have not been merged yet."""


def options_of(request: GenerateData) -> GenerateOptions:
    """The generation options of a request."""
    return GenerateOptions(
        **{f.name: getattr(request, f.name) for f in fields(GenerateOptions) if hasattr(request, f.name)}
    )


def answer(
    request: GenerateData, context: JobContext, source: str, folder: Path, options: GenerateOptions
) -> dict[str, Any]:
    """Generate the missing answers to data set `source` into `folder`; returns the report."""
    generate = _generate_remote if request.endpoint else _generate_local
    return generate(request, context, source, folder, options)


def must_have_rows(report: dict[str, Any]) -> None:
    """Raises BadInput if every conversation was left out."""
    if not report["rows"] and report["left_out"]:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in report["left_out"].items())
        raise BadInput(
            f"Every conversation was skipped: {kinds}.",
            "The log has the reasons for the first ones; allow longer responses, keep cut ones, or use another model.",
        )


def publish(request: GenerateData, context: JobContext, rows: int, report: dict[str, Any]) -> None:
    """Write the preview for the data set's page, then fill its row, fenced."""
    path = str(context.dataset_folder(request.dataset_id))
    if request.base_id:
        write_preview(context, Path(path), context.input_with_files(Base, request.base_id).path)
    counts = {"rows": rows, "bad_rows": sum(report.get("left_out", {}).values())}
    report = {**report, **count_lengths(path)}
    config = request.to_json()
    context.publish(Dataset, request.dataset_id, state="ready", path=path, report=report, config=config, **counts)


def write_preview(context: JobContext, folder: Path, base_path: str) -> None:
    """Write `preview.json` in a data set folder: the tokens of the first conversations with their loss mask, as the web
    server has no tokenizer. An error is logged and does not fail the job."""
    from training.preview import preview

    try:
        write_json(folder / "preview.json", {"rows": preview(folder, base_path, PREVIEW_ROWS)})
    except (SpeculoosError, OSError, ValueError) as error:
        context.log(f"The preview of the loss mask could not be created: {error}", "warning")


def author_of(request: GenerateData, context: JobContext) -> dict[str, str]:
    """Identity of the answering model: checksums of the base, or endpoint and model name. Equal identities give equal
    answers."""
    if not request.endpoint:
        return _base_checksums(request, context)
    models = [request.endpoint_model or endpoint.model for endpoint in endpoints_of(request, context)]
    return {"endpoint": request.endpoint, "model": ",".join(sorted(set(models))), **_base_checksums(request, context)}


def _base_checksums(request: GenerateData, context: JobContext) -> dict[str, str]:
    """Checksums of the base that answers or that the endpoint serves; empty if the request names no base."""
    if not request.base_id:
        return {}
    base = context.input_row(Base, request.base_id)
    return {"weights_sha256": base.weights_sha256, "tokenizer_sha256": base.tokenizer_sha256}


def place_of(request: GenerateData, context: JobContext) -> ShardFolder:
    """Folder for the finished shards of a generation: in the store, if configured, for other machines."""
    if store := context.files.store:
        return ShardFolder(store, f"{stored.store_key(stored.KINDS[Dataset], request.dataset_id)}/{PARTS}")
    return ShardFolder(Store(f"file://{context.dataset_folder(request.dataset_id)}"), PARTS)


def work_of(key: str, request: GenerateData, context: JobContext) -> Path:
    """Folder for the rows of shard `key` until the shard is complete, shared by all attempts."""
    return context.dataset_folder(request.dataset_id) / PARTS / f"{key}.work"


def endpoints_of(request: GenerateData | Evaluate, context: JobContext) -> list[Endpoint]:
    """The endpoints of a request. Raises BadInput for a name that is not in settings.toml."""
    known = context.settings.endpoints
    names = [name.strip() for name in request.endpoint.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise BadInput(
                f"There is no endpoint named {name!r} in settings.toml; known are: {', '.join(known) or 'none yet'}.",
                "Add an [endpoints.NAME] table with its url, then retry.",
            )
    return [known[name] for name in dict.fromkeys(names)]


def _generate_local(
    request: GenerateData, context: JobContext, source: str, folder: Path, options: GenerateOptions
) -> dict[str, Any]:
    from corpus.generate_local import generate_local, generation_dtype
    from models.base import load_base
    from training.hidden_states.states_store import StatesStore
    from workers.child.work.devices import take_device

    row = context.input_with_files(Base, request.base_id)
    device = take_device(context)
    base = load_base(row.path, generation_dtype(device), device, context.known(row), context.sums)
    context.begin()
    states = None
    if store := request.hidden_states_store:
        folder_of_states = context.settings.hidden_states_folder / store
        states = StatesStore(folder_of_states, row.weights_sha256, base.dtype, base.hidden_size)
    return generate_local(base, source, folder, options, context, row.card or None, states)


def _generate_remote(
    request: GenerateData, context: JobContext, source: str, folder: Path, options: GenerateOptions
) -> dict[str, Any]:
    from corpus.generate_remote import generate_remote

    endpoints, base = endpoints_of(request, context), _served_base(request, context)
    return generate_remote(endpoints, request.endpoint_model, source, folder, options, context, base)


def _served_base(request: GenerateData, context: JobContext) -> ServedBase | None:
    """The base that the endpoint serves, if the request names it."""
    if not request.base_id:
        return None
    from models.tokenizer import load_tokenizer, read_eos_ids

    base = context.input_with_files(Base, request.base_id)
    tokenizer = load_tokenizer(base.path)
    eos_ids = read_eos_ids(base.path, tokenizer)
    return ServedBase(tokenizer, eos_ids, base.weights_sha256, base.tokenizer_sha256)
