"""Which base and which draft a command names: rows of this home, or folders on disk."""

from dataclasses import dataclass
from pathlib import Path

from speculoos.errors import BadInput
from speculoos.settings import Settings
from tracking import queries
from tracking.db import reading


@dataclass(frozen=True)
class TargetRef:
    """Where the files are. `name` is `base` or `base@checkpoint`; ids are empty for folders that are in no list."""

    name: str
    base_path: str
    base_sha256: str = ""
    base_id: str = ""
    checkpoint_path: str = ""
    checkpoint_id: str = ""


def resolve(settings: Settings, model: str, checkpoint: str = "") -> TargetRef:
    """`model` is a name, `base@checkpoint`, an id or a folder; `checkpoint` a name, an id or a folder.

    Raises NotFound, or Conflict for one that is not ready.
    """
    if is_folder(model):
        return _with_folder(TargetRef(model, str(Path(model).expanduser().resolve())), checkpoint)
    with reading(settings) as session:
        base, found = queries.find_model(session, model)
        if found and checkpoint:
            raise BadInput(f"--model {model} names a checkpoint already; leave --checkpoint out.")
        queries.must_be_ready(base)
        ref = TargetRef(base.name, base.path, base.weights_sha256, base.id)
        if is_folder(checkpoint):
            return _with_folder(ref, checkpoint)
        if checkpoint:
            found = queries.find_checkpoint(session, checkpoint, base.id)
        if not found:
            return ref
        queries.must_be_ready(found)
        name = f"{base.name}@{found.name}"
        return TargetRef(name, base.path, base.weights_sha256, base.id, found.path, found.id)


def is_folder(reference: str) -> bool:
    """Whether a reference is meant as a folder: it looks like a path and there is one."""
    return ("/" in reference or reference.startswith(".")) and Path(reference).expanduser().is_dir()


def _with_folder(ref: TargetRef, checkpoint: str) -> TargetRef:
    if not checkpoint:
        return ref
    if not is_folder(checkpoint):
        raise BadInput(f"--checkpoint {checkpoint}: for a model given as a folder, give the checkpoint's folder too.")
    path = str(Path(checkpoint).expanduser().resolve())
    return TargetRef(f"{ref.name}@{path}", ref.base_path, ref.base_sha256, ref.base_id, path)
