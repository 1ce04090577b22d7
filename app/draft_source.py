"""What the form that adds a published draft asks for: where it is, the files that were uploaded, the request. Pure but
for the folder that uploads are gathered in."""

import os
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.forms import hub_id, readable
from formats.imports.look import DraftInspection, ExpectedDraft, draft_files, look
from formats.imports.names import TITLES
from speculoos.errors import BadInput
from speculoos.files import plain_name
from speculoos.settings import Settings
from tracking.tables import Base
from workers.jobs.requests import ImportDraft

SOURCES = {"Hub id": "hub", "Upload": "upload", "Local folder": "folder"}
LAYOUTS = [("Found by itself", ""), *((title, name) for name, title in TITLES.items())]


@dataclass(frozen=True)
class DraftForm:
    """The form's values: the source as the page calls it, a base's id, what was typed, paths of uploads, a layout, the
    new checkpoint's name."""

    source: str
    base_id: str
    location: str
    uploads: Sequence[str]
    layout: str
    name: str

    @classmethod
    def of(cls, source: Any, base_id: Any, location: Any, uploads: Any, layout: Any, name: Any) -> "DraftForm":
        """Out of the boxes' values, which may be empty."""
        texts = [value if isinstance(value, str) else "" for value in (base_id, location, layout, name)]
        base_id, location, layout, name = texts
        source = source if isinstance(source, str) and source in SOURCES else next(iter(SOURCES))
        return cls(source, base_id, location, uploads or [], layout, name.strip())

    @property
    def kind(self) -> str:
        """hub, upload or folder."""
        return SOURCES[self.source]

    @property
    def is_empty(self) -> bool:
        """Whether nothing says yet which draft is meant."""
        return not (self.uploads if self.kind == "upload" else self.location.strip())


def files_of(settings: Settings, form: DraftForm) -> tuple[list[Path], str]:
    """The draft's files that lie on this server, and what messages call them; none for a hub id. Raises BadInput."""
    if form.kind == "hub":
        return [], ""
    if form.kind == "upload":
        return draft_files(_still_there(form.uploads)), slug(form.name)
    folder = _folder(settings, form.location)
    try:
        return draft_files([path for path in folder.iterdir() if path.is_file()]), folder.name
    except OSError as error:
        raise BadInput(f"Local folder: {folder} cannot be read ({error.strerror}).") from None


def first_look(settings: Settings, form: DraftForm, base: Base) -> DraftInspection | None:
    """What the files are and whether they can be for `base`; None for a hub id, which the job fetches. Raises BadInput
    or Unsupported."""
    files, shown = files_of(settings, form)
    return look(files, wanted(base), form.layout, shown) if files else None


def wanted(base: Base) -> ExpectedDraft:
    """What a base's card says of it."""
    card = base.card or {}
    sizes = (card.get("hidden_size") or 0, card.get("vocabulary") or 0)
    return ExpectedDraft(base.name, *sizes, card.get("methods") or {})


def request_of(settings: Settings, form: DraftForm) -> ImportDraft:
    """The job's request; of uploads with the place they would be gathered at. Raises BadInput."""
    if not form.base_id:
        raise BadInput("Base model: choose the one the draft was made for.")
    if form.is_empty:
        raise BadInput(f"{form.source}: say which draft; the box is empty.")
    if form.layout and form.layout not in TITLES:
        raise BadInput(f"Format: there is no {form.layout[:40]!r}; reload the page.")
    places = {"hub": lambda: hub_id(form.location.strip()), "folder": lambda: str(_folder(settings, form.location))}
    location = places[form.kind]() if form.kind in places else str(_new_place(settings, form.name))
    return ImportDraft(source=form.kind, location=location, base_id=form.base_id, layout=form.layout)


def gather(settings: Settings, form: DraftForm, request: ImportDraft) -> None:
    """Put uploads where the request says, side by side: links to the same files, which their cleaning up leaves."""
    if form.kind != "upload":
        return
    folder = Path(request.location)
    folder.mkdir(parents=True)
    for path in files_of(settings, form)[0]:
        try:
            os.link(path, folder / path.name)
        except OSError:  # a disk that knows no links
            shutil.copy2(path, folder / path.name)


def slug(name: str) -> str:
    """A folder's name for a draft's."""
    return plain_name(name)[:80] or "upload"


def _still_there(uploads: Sequence[str]) -> list[Path]:
    """Raises BadInput where one was cleaned up meanwhile."""
    if gone := next((path for path in map(Path, uploads) if not path.is_file()), None):
        raise BadInput(f"Upload: {gone.name} is not here any more; choose the files again.")
    return [Path(path) for path in uploads]


def _new_place(settings: Settings, name: str) -> Path:
    return settings.home / "uploads" / uuid.uuid4().hex / slug(name)


def _folder(settings: Settings, text: str) -> Path:
    path = readable(settings, text.strip())
    if not path.is_dir():
        raise BadInput(f"Local folder: there is no folder {path}.")
    return path
