"""Uploads training checkpoints to the store, so that a training can resume on another machine.

A thread of the child uploads each new checkpoint and the best draft model while the training continues; the note with
their names is written last. If uploads are slower than checkpoints, some are skipped. Does nothing without a store.
"""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from speculoos.errors import SpeculoosError
from speculoos.store import Store
from tracking.stored import KINDS, store_prefix
from tracking.tables import Checkpoint
from training.resume_points import RESUME_POINT_NAME, latest_resume_point, resume_point_damage
from workers.child.context import JobContext

log = logging.getLogger(__name__)
CHECK_POLLS = 20  # interval between checks for a new checkpoint, in units of poll_seconds
LAST_SECONDS = 5.0  # timeout for the last upload at the end of an attempt: a stopping worker has little time
BEST = "best"


class UploadedCheckpoints:
    """Training checkpoints of one Checkpoint row in a store."""

    def __init__(self, store: Store, checkpoint_id: str):
        self.store, self.prefix = store, f"{store_prefix(KINDS[Checkpoint], checkpoint_id)}/states"

    def note(self) -> dict[str, Any]:
        """`attempt`, `place` (the prefix) and `folders` ({name: key}) of the newest checkpoint; {} for none. A note has
        no checksum: one with a path outside of its folders is ignored."""
        try:
            note = json.loads(self.store.read(f"{self.prefix}/newest.json") or b"{}")
        except ValueError:
            return {}
        return note if _is_note(note, self.prefix) else {}

    def put(self, attempt: int, state: Path) -> None:
        """Upload a checkpoint and the best draft model beside it; delete the previous one of this attempt."""
        before = self.note()
        target = f"{self.prefix}/{attempt}-{state.name}"
        folders = [state, *([state.parent / BEST] if (state.parent / BEST).is_dir() else [])]
        keys = {folder.name: self.store.put_folder(f"{target}/{folder.name}", folder).key for folder in folders}
        note = {"attempt": attempt, "place": target, "folders": keys}
        self.store.write(f"{self.prefix}/newest.json", json.dumps(note).encode())
        if before.get("attempt") == attempt and before["place"] != target:
            self.store.delete(before["place"])

    def download(self, root: Path) -> bool:
        """Download the newest checkpoint into the folder of its attempt below `root`; False if there is none."""
        note = self.note()
        for name, key in note["folders"].items() if note else ():
            target = root / f"attempt-{note['attempt']}" / name
            if not target.exists():
                self.store.get_folder(f"{note['place']}/{name}", key, target)
        return bool(note)


def _is_note(value: Any, parent: str) -> bool:
    if not isinstance(value, dict) or type(value.get("attempt")) is not int:
        return False
    path, folders = value.get("place"), value.get("folders")
    if not isinstance(path, str) or not path.startswith(f"{parent}/") or ".." in path:
        return False
    return isinstance(folders, dict) and all(name == BEST or RESUME_POINT_NAME.fullmatch(name) for name in folders)


def download_checkpoints(context: JobContext, checkpoint_id: str, root: Path) -> None:
    """Download the newest checkpoint of any machine, beside local ones; errors of the store are logged."""
    if store := context.files.store:
        try:
            UploadedCheckpoints(store, checkpoint_id).download(root)
        except SpeculoosError as error:
            context.log(f"No training checkpoint could be downloaded from the store: {error}", "warning")


def delete_uploaded_checkpoints(context: JobContext, checkpoint_id: str) -> None:
    """Delete the uploaded checkpoints of a finished training."""
    if store := context.files.store:
        with suppress(SpeculoosError):
            store.delete(UploadedCheckpoints(store, checkpoint_id).prefix)


@contextmanager
def uploading_checkpoints(context: JobContext, checkpoint_id: str, folder: Path) -> Iterator[None]:
    """Upload new checkpoints in `folder` to the store during the block."""
    if context.files.store is None:
        yield
        return
    states, ended = UploadedCheckpoints(context.files.store, checkpoint_id), threading.Event()

    def upload_all() -> None:
        last, is_last = None, False
        while not is_last:
            is_last = ended.wait(CHECK_POLLS * context.timing.poll_seconds)
            newest = latest_resume_point(folder)
            try:
                if newest and newest != last and not resume_point_damage(newest):
                    states.put(context.attempt, newest)
                    last = newest
            except (SpeculoosError, OSError) as error:  # it was deleted meanwhile, or the store is not reachable
                log.warning("The checkpoint %s was not uploaded to the store: %s", newest.name, error)

    thread = threading.Thread(target=upload_all, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_SECONDS)
