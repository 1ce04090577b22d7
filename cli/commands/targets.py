"""Models, checkpoints and datasets of commands: rows of this home, or folders on disk; deletes rows."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from cli.console import finish
from models.damage import BaseChecksums
from models.starter import installed
from ops.homes import open_home
from speculoos.checksums import ChecksumCache
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tracking import changes, queries
from tracking.db import reading, writing
from tracking.leases import DeviceSharing, exclusive_device
from tracking.stored import RowFiles

DeviceOption = Annotated[
    str,
    typer.Option(help="cpu, cuda, cuda:N, or GPUs that share the base: cuda:0,cuda:1; default SPECULOOS_DEVICE."),
]


@dataclass(frozen=True)
class TargetRef:
    """Paths of base and checkpoint. `name` is `base` or `base@checkpoint`; ids are empty for folders without a row."""

    name: str
    base_path: str
    base_sha256: str = ""
    base_id: str = ""
    checkpoint_path: str = ""
    checkpoint_id: str = ""
    checkpoint_sha256: str = ""
    base_known: BaseChecksums = BaseChecksums()
    """Checksums from the row of the base model; empty for a folder without a row."""


def resolve(settings: Settings, model: str, checkpoint: str = "") -> TargetRef:
    """`model` is a name, `base@checkpoint`, an id or a folder; `checkpoint` a name, an id or a folder.

    Raises NotFound, or Conflict for a row that is not ready.
    """
    if is_folder(model):
        return _with_folder(TargetRef(model, str(Path(model).expanduser().resolve())), checkpoint)
    with reading(settings) as session:
        base, row = queries.find_model(session, model)
        if row and checkpoint:
            raise BadInput(f"--model {model} names a draft; leave --checkpoint out.")
        queries.must_be_ready(base)
        if checkpoint and not is_folder(checkpoint):
            row = queries.find_checkpoint(session, checkpoint, base.id)
        if row:
            queries.must_be_ready(row)
    files = RowFiles(settings, installed)
    known = BaseChecksums.of(base.weights_sha256, base.tokenizer_sha256, base.card)
    ref = TargetRef(base.name, files.local(base), base.weights_sha256, base.id, base_known=known)
    if not row:
        return _with_folder(ref, checkpoint)
    return replace(
        ref,
        name=f"{base.name}@{row.name}",
        checkpoint_path=files.local(row),
        checkpoint_id=row.id,
        checkpoint_sha256=row.sha256,
    )


def is_folder(reference: str) -> bool:
    """Whether a reference has the form of a path and the folder exists."""
    return ("/" in reference or reference.startswith(".")) and Path(reference).expanduser().is_dir()


def _with_folder(ref: TargetRef, checkpoint: str) -> TargetRef:
    if not checkpoint:
        return ref
    if not is_folder(checkpoint):
        raise BadInput(f"--checkpoint {checkpoint}: with a folder as --model, use the folder of the draft too.")
    path = str(Path(checkpoint).expanduser().resolve())
    return replace(ref, name=f"{ref.name}@{path}", checkpoint_path=path)


def base_id(settings: Settings, reference: str) -> str:
    """The id of a base model with this name or id. Raises NotFound."""
    with reading(settings) as session:
        return queries.find_base(session, reference).id


def dataset(settings: Settings, reference: str) -> tuple[Path, str]:
    """(folder, name) of a dataset. Raises NotFound, or Conflict if it is not ready."""
    with reading(settings) as session:
        row = queries.find_dataset(session, reference)
        queries.must_be_ready(row)
    return Path(RowFiles(settings).local(row)), row.name


def load_target(settings: Settings, ref: TargetRef, device: str) -> tuple[Any, Any]:
    """The base model on `device` in the precision of the settings, and its draft or None. Raises Damaged for changed
    files."""
    from models.base import decoding_dtype, load_base
    from models.checkpoints import load_draft

    checksum_cache = ChecksumCache.of(settings)
    base = load_base(ref.base_path, decoding_dtype(settings.dtype, device), device, ref.base_known, checksum_cache)
    if not ref.checkpoint_path:
        return base, None
    return base, load_draft(ref.checkpoint_path, base, ref.base_sha256, ref.checkpoint_sha256, checksum_cache)


@contextmanager
def leased_devices(settings: Settings, base: Any, name: str) -> Iterator[DeviceSharing]:
    """Hold the leases of the base's devices, so that jobs wait; yields who shared one of them."""
    from models.base import lease_name

    devices = dict.fromkeys([base.device, *base.layer_devices])
    sharing, parts = DeviceSharing(), []
    with ExitStack() as stack:
        for number, device in enumerate(devices):
            own = f"{name}-{os.getpid()}-{number}"
            parts.append(stack.enter_context(exclusive_device(settings, lease_name(device), own)))
        yield sharing
    for part in parts:
        sharing.add(part.shared_with)


def remove_row(find: Callable[[Session], Any], force: bool, as_json: bool) -> None:
    """Delete the row that `find` returns. Raises Conflict with its dependents, unless `force`."""
    settings = open_home()
    with writing(settings) as session:
        row = find(session)
        name, row_id = row.name, row.id
        paths = changes.delete(session, settings, row, force=force)
    freed = changes.remove_files(paths)
    finish({"deleted": row_id, "name": name, "bytes": freed}, as_json, f"Deleted {name} ({freed / 1e6:.1f} MB).")
