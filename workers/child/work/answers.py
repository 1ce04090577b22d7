"""What generations, whole or in shards, have in common: who answers, with which options, into which folders."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from corpus.conversations import GenerateOptions
from corpus.labels import ServedBase
from corpus.lengths import count_lengths
from corpus.places import LocalShardFolder, ShardFolder, StoreShardFolder
from speculoos.errors import BadInput
from speculoos.settings import Endpoint
from tracking import stored
from tracking.tables import Base, Dataset
from workers.child.context import JobContext
from workers.jobs.hidden_states import store_folder
from workers.jobs.requests import Evaluate, GenerateData

PARTS = "parts"
"""In a data set's folder: shards that are not part of it yet."""


def options_of(request: GenerateData) -> GenerateOptions:
    """How answers are made."""
    return GenerateOptions(
        **{f.name: getattr(request, f.name) for f in fields(GenerateOptions) if hasattr(request, f.name)}
    )


def answer(
    request: GenerateData, context: JobContext, source: str, folder: Path, options: GenerateOptions
) -> dict[str, Any]:
    """Answer what is not answered yet of data set `source` into `folder`; returns the report."""
    by = _by_endpoints if request.endpoint else _by_base
    return by(request, context, source, folder, options)


def must_have_rows(report: dict[str, Any]) -> None:
    """Raises BadInput where every conversation was left out: there is nothing to learn from."""
    if not report["rows"] and report["left_out"]:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in report["left_out"].items())
        raise BadInput(
            f"No conversation is left: {kinds}.",
            "The log says why of the first ones; allow longer answers, keep cut ones, or ask another model.",
        )


def publish(request: GenerateData, context: JobContext, rows: int, report: dict[str, Any]) -> None:
    """Fill the data set's row, fenced; before that, the preview its page shows."""
    from workers.child.work.previews import write_preview

    path = str(context.dataset_folder(request.dataset_id))
    if request.base_id:
        write_preview(context, Path(path), context.usable(Base, request.base_id).path)
    counts = {"rows": rows, "bad_rows": sum(report.get("left_out", {}).values())}
    report = {**report, **count_lengths(path)}
    made = {"state": "ready", "path": path, "report": report, "config": request.to_json()}
    context.publish(Dataset, request.dataset_id, **made, **counts)


def author_of(request: GenerateData, context: JobContext) -> dict[str, str]:
    """Who answers, in what changes no answer when it is the same: sums of the base, or the model's name there."""
    if not request.endpoint:
        return _sums(request, context)
    models = [request.endpoint_model or endpoint.model for endpoint in endpoints_of(request, context)]
    return {"endpoint": request.endpoint, "model": ",".join(sorted(set(models))), **_sums(request, context)}


def _sums(request: GenerateData, context: JobContext) -> dict[str, str]:
    """Of the base that answers, or that the endpoint serves; none where that is not said."""
    if not request.base_id:
        return {}
    base = context.ready(Base, request.base_id)
    return {"weights_sha256": base.weights_sha256, "tokenizer_sha256": base.tokenizer_sha256}


def place_of(request: GenerateData, context: JobContext) -> ShardFolder:
    """Where finished shards of this generation land: in the store, where there is one, for any machine to take."""
    if store := context.files.store:
        return StoreShardFolder(store, f"{stored.store_key(stored.KINDS[Dataset], request.dataset_id)}/{PARTS}")
    return LocalShardFolder(context.dataset_folder(request.dataset_id) / PARTS)


def work_of(key: str, request: GenerateData, context: JobContext) -> Path:
    """Where the rows of shard `key` gather until it is whole, for all its attempts."""
    return context.dataset_folder(request.dataset_id) / PARTS / f"{key}.work"


def endpoints_of(request: GenerateData | Evaluate, context: JobContext) -> list[Endpoint]:
    """The endpoints a request names. Raises BadInput for one that settings.toml does not know."""
    known = context.settings.endpoints
    names = [name.strip() for name in request.endpoint.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise BadInput(
                f"There is no endpoint named {name!r} in settings.toml; known are: {', '.join(known) or 'none yet'}.",
                "Add an [endpoints.NAME] table with its url, then retry.",
            )
    return [known[name] for name in dict.fromkeys(names)]


def _by_base(
    request: GenerateData, context: JobContext, source: str, folder: Path, options: GenerateOptions
) -> dict[str, Any]:
    from corpus.generate_local import generate_local, generation_dtype
    from models.base import load_base
    from training.hidden_states.kept import StatesStore
    from workers.child.work.devices import take_device

    row = context.usable(Base, request.base_id)
    device = take_device(context)
    base = load_base(row.path, generation_dtype(device), device, context.known(row), context.sums)
    context.begin()
    where = store_folder(context.settings, request.hidden_states_store)
    keep = StatesStore(where, row.weights_sha256, base.dtype, base.hidden_size) if where else None
    return generate_local(base, source, folder, options, context, row.card or None, keep)


def _by_endpoints(
    request: GenerateData, context: JobContext, source: str, folder: Path, options: GenerateOptions
) -> dict[str, Any]:
    from corpus.generate_remote import generate_remote

    endpoints, served = endpoints_of(request, context), _served(request, context)
    return generate_remote(endpoints, request.endpoint_model, source, folder, options, context, served)


def _served(request: GenerateData, context: JobContext) -> ServedBase | None:
    """The base that the endpoint serves, where that is said."""
    if not request.base_id:
        return None
    from models.tokenizer import load_tokenizer, read_eos_ids

    base = context.usable(Base, request.base_id)
    tokenizer = load_tokenizer(base.path)
    eos_ids = read_eos_ids(base.path, tokenizer)
    return ServedBase(tokenizer, eos_ids, base.weights_sha256, base.tokenizer_sha256)
