"""Training states in the store, so that a training whose machine is gone goes on elsewhere. Without a store: nothing.

A thread of the child puts each new state there, with the best draft so far, while the training goes on; the note that
names them comes last. Where one takes longer than the next takes to come, some are passed over.
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
from tracking.stored import KINDS, place
from tracking.tables import Checkpoint
from training.resume_points import NAME, damage, latest_resume_point
from workers.child.context import Context

log = logging.getLogger(__name__)
LOOK_POLLS = 20
"""How often it looks for a new state, in the pauses between two reports."""
LAST_SECONDS = 5.0
"""How long the end of an attempt waits for its last state to arrive: a worker that is told to stop has little time."""
BEST = "best"


class States:
    """The states of one checkpoint in a store."""

    def __init__(self, store: Store, checkpoint_id: str):
        self.store, self.place = store, f"{place(KINDS[Checkpoint], checkpoint_id)}/states"

    def note(self) -> dict[str, Any]:
        """`attempt`, `place` and `folders` ({name: key}) of the newest one; {} for none. No sum proves a note, so one
        that leads elsewhere, here or in the store, is none."""
        try:
            said = json.loads(self.store.read(f"{self.place}/newest.json") or b"{}")
        except ValueError:
            return {}
        return said if _is_note(said, self.place) else {}

    def put(self, attempt: int, state: Path) -> None:
        """Put a state and the best draft beside it, and remove what this attempt put before."""
        before = self.note()
        here = f"{self.place}/{attempt}-{state.name}"
        folders = [state, *([state.parent / BEST] if (state.parent / BEST).is_dir() else [])]
        kept = {folder.name: self.store.put_folder(f"{here}/{folder.name}", folder).key for folder in folders}
        said = {"attempt": attempt, "place": here, "folders": kept}
        self.store.write(f"{self.place}/newest.json", json.dumps(said).encode())
        if before.get("attempt") == attempt and before["place"] != here:
            self.store.delete(before["place"])

    def bring(self, root: Path) -> bool:
        """Make the newest one a folder of an earlier attempt below `root`; False where there is none."""
        said = self.note()
        for name, key in said["folders"].items() if said else ():
            target = root / f"attempt-{said['attempt']}" / name
            if not target.exists():
                self.store.get_folder(f"{said['place']}/{name}", key, target)
        return bool(said)


def _is_note(said: Any, below: str) -> bool:
    if not isinstance(said, dict) or type(said.get("attempt")) is not int:
        return False
    at, folders = said.get("place"), said.get("folders")
    if not isinstance(at, str) or not at.startswith(f"{below}/") or ".." in at:
        return False
    return isinstance(folders, dict) and all(name == BEST or NAME.fullmatch(name) for name in folders)


def bring_states(context: Context, checkpoint_id: str, root: Path) -> None:
    """The newest state that any machine has put, beside those that are here; a store that cannot give it is said."""
    if store := context.files.store:
        try:
            States(store, checkpoint_id).bring(root)
        except SpeculoosError as error:
            context.log(f"No training state came from the store: {error}", "warning")


def drop_states(context: Context, checkpoint_id: str) -> None:
    """The training is done; nobody goes on from its states on another machine."""
    if store := context.files.store:
        with suppress(SpeculoosError):
            store.delete(States(store, checkpoint_id).place)


@contextmanager
def keeping_states(context: Context, checkpoint_id: str, folder: Path) -> Iterator[None]:
    """Put the states that appear in `folder` into the store for as long as the block lasts."""
    if context.files.store is None:
        yield
        return
    states, ended = States(context.files.store, checkpoint_id), threading.Event()
    thread = threading.Thread(target=_keep, args=(states, context, folder, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_SECONDS)


def _keep(states: States, context: Context, folder: Path, ended: threading.Event) -> None:
    last: Path | None = None
    while True:
        over = ended.wait(LOOK_POLLS * context.timing.poll_seconds)
        newest = latest_resume_point(folder)
        if newest and newest != last and _put(states, context.attempt, newest):
            last = newest
        if over:
            return


def _put(states: States, attempt: int, state: Path) -> bool:
    """A state that is removed meanwhile, or a store that is away: the next one then."""
    try:
        if not damage(state):
            states.put(attempt, state)
            return True
    except (SpeculoosError, OSError) as error:
        log.warning("The state %s is not in the store: %s", state.name, error)
    return False
