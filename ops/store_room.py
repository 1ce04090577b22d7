"""What of the store no row means any more: files of rows that are gone, and states that newer ones took the place of.

Only looked for when someone asks: a store may hold many files. What a job still works on is left alone, and so are what
changed within a day and states from which a training may be gone on.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from ops import storage
from speculoos.errors import Damaged
from speculoos.settings import Settings
from speculoos.store import Store, open_store
from tracking import db, stored
from tracking.states import FINISHED
from tracking.stored import EXPORTS, KINDS, UPLOADS
from tracking.tables import Checkpoint, Job, Stored, now


def leftovers(settings: Settings, at: datetime | None = None, ended_before: datetime | None = None) -> dict[str, int]:
    """{name in the store: bytes} of what may go; states of trainings that did not succeed where these `ended_before`.
    Raises Unavailable when the store does not answer."""
    store = open_store(settings.store)
    if store is None:
        return {}
    with db.reading(settings) as session:
        kept = {stored.store_key(row.kind, row.id): row.key for row in session.scalars(select(Stored))}
        known, busy = _places(session)
        resumable = _resumable(session, ended_before)
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for name, size in store.names().items():
        found[_place(name)][name] = size
    before = (at or now()) - storage.YOUNG
    going = {
        name: size
        for place, names in found.items()
        if place not in busy
        for name, size in _unmeant(store, place, names, known, kept.get(place, ""), place in resumable)
    }
    return {name: size for name, size in going.items() if store.changed(name) < before}


def remove(settings: Settings, names: dict[str, int]) -> None:
    """Remove them, but for those that a job works on by now: it was retried meanwhile."""
    if store := open_store(settings.store):
        with db.reading(settings) as session:
            _, busy = _places(session)
        store.remove([name for name in names if _place(name) not in busy])


def _place(name: str) -> str:
    return "/".join(name.split("/")[:2])


def _places(session: Session) -> tuple[set[str], set[str]]:
    """Places of rows, and those among them that a job works on or waits for."""
    active = set(session.scalars(select(Job.id).where(Job.state.not_in(FINISHED))))
    known, busy = set(), set()
    for table, kind in KINDS.items():
        for row_id, job_id in session.execute(select(table.id, table.job_id)):
            known.add(stored.store_key(kind, row_id))
            busy |= {stored.store_key(kind, row_id)} if job_id in active else set()
    known |= {stored.store_key(EXPORTS, row_id) for row_id in session.scalars(select(Checkpoint.id))}
    known |= {
        stored.store_key(UPLOADS, row.id) for row in session.scalars(select(Stored).where(Stored.kind == UPLOADS))
    }
    return known, busy


def _resumable(session: Session, ended_before: datetime | None) -> set[str]:
    """Places of checkpoints whose states a retry may want."""
    query = select(Checkpoint.id, Job.state, Job.finished_at).join(Job, Job.id == Checkpoint.job_id)
    rows = session.execute(query).all()
    return {stored.store_key(KINDS[Checkpoint], row[0]) for row in rows if storage.resumable(*row[1:], ended_before)}


def _unmeant(
    store: Store, place: str, names: dict[str, int], known: set[str], key: str, resumable: bool
) -> Iterator[tuple[str, int]]:
    if place not in known:
        yield from names.items()
        return
    states = {name for name in names if name.startswith(f"{place}/states/")}
    if not resumable:
        yield from ((name, names[name]) for name in states)
    if place.startswith(f"{EXPORTS}/") or not key:
        return  # exports have no list; without one nothing was made yet, and a retry may want what there is
    meant = _meant(store, place, key)
    yield from ((name, size) for name, size in names.items() if name not in meant | states)


def _meant(store: Store, place: str, key: str) -> set[str]:
    """The list that a row means and all in it; everything there where the list cannot be read."""
    try:
        listed = store.listed(place, key)
    except Damaged:
        return {f"{place}/{name}" for name in store.names(place)}
    return {f"{place}/folders/{key}.json", *(f"{place}/files/{entry['sha256']}" for entry in listed.values())}
