"""Values of the form that imports a published draft: source, uploaded files, request."""

import os
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.forms import hub_id, readable
from app.i18n import N_
from formats.imports.names import TITLES
from formats.imports.run import draft_files
from speculoos.errors import BadInput
from speculoos.files import portable_name
from speculoos.settings import Settings
from workers.jobs.requests import ImportDraft

SOURCES = {"hub": N_("Hub id"), "upload": N_("Upload"), "folder": N_("Local folder")}
LAYOUTS = [(N_("Detect automatically"), ""), *((title, name) for name, title in TITLES.items())]


@dataclass(frozen=True)
class DraftForm:
    """The form's values: kind of source, base model id, location, paths of uploads, layout, name of the new
    checkpoint."""

    kind: str
    base_id: str
    location: str
    uploads: Sequence[str]
    layout: str
    name: str

    @classmethod
    def of(cls, kind: Any, base_id: Any, location: Any, uploads: Any, layout: Any, name: Any) -> "DraftForm":
        """From the fields' values, which may be empty."""
        base_id, location, layout, name = (v if isinstance(v, str) else "" for v in (base_id, location, layout, name))
        kind = kind if str(kind) in SOURCES else "hub"
        return cls(kind, base_id, location, uploads or [], layout, name.strip())

    @property
    def is_empty(self) -> bool:
        """Whether no draft is specified yet."""
        return not (self.uploads if self.kind == "upload" else self.location.strip())


def files_of(settings: Settings, form: DraftForm) -> list[Path]:
    """The draft's files on this machine; none for a Hub id. Raises BadInput."""
    if form.kind == "hub":
        return []
    if form.kind == "upload":
        uploads = [Path(path) for path in form.uploads]
        if missing := next((path for path in uploads if not path.is_file()), None):
            raise BadInput(f"Upload: {missing.name} no longer exists; choose the files again.")
        return draft_files(uploads)
    folder = _folder(settings, form.location)
    try:
        return draft_files([path for path in folder.iterdir() if path.is_file()])
    except OSError as error:
        raise BadInput(f"Local folder: {folder} cannot be read ({error.strerror}).") from None


def request_of(settings: Settings, form: DraftForm) -> ImportDraft:
    """The job's request; for uploads with the folder that `link_uploads` fills. Raises BadInput."""
    if not form.base_id:
        raise BadInput("Base model: choose the model that the draft was trained for.")
    if form.is_empty:
        raise BadInput(f"{SOURCES[form.kind]}: the field is empty; enter the draft to import.")
    if form.layout and form.layout not in TITLES:
        raise BadInput(f"Format: {form.layout[:40]!r} is unknown; reload the page.")
    if form.kind == "hub":
        location = hub_id(form.location.strip())
    elif form.kind == "folder":
        location = str(_folder(settings, form.location))
    else:
        location = str(settings.home / "uploads" / uuid.uuid4().hex / (portable_name(form.name)[:80] or "upload"))
    return ImportDraft(source=form.kind, location=location, base_id=form.base_id, layout=form.layout)


def link_uploads(settings: Settings, form: DraftForm, request: ImportDraft) -> None:
    """Put uploads into the request's folder as hard links, which remain when the uploads are cleaned up."""
    if form.kind != "upload":
        return
    folder = Path(request.location)
    folder.mkdir(parents=True)
    for path in files_of(settings, form):
        try:
            os.link(path, folder / path.name)
        except OSError:  # a file system without hard links
            shutil.copy2(path, folder / path.name)


def _folder(settings: Settings, text: str) -> Path:
    path = readable(settings, text.strip())
    if not path.is_dir():
        raise BadInput(f"Local folder: there is no folder {path}.")
    return path
