"""Request of the form that imports a published draft, and its uploaded files."""

import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

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


def draft_request(
    settings: Settings,
    kind: str,
    base_id: str | None,
    location: str,
    uploads: Sequence[str] | None,
    layout: str | None,
    name: str | None,
) -> ImportDraft:
    """Request to import a draft, whose files are checked; for uploads with the folder that `link_uploads` fills. Raises
    BadInput."""
    if not isinstance(base_id, str) or not base_id:
        raise BadInput("Base model: choose the model that the draft was trained for.")
    if not (uploads if kind == "upload" else location.strip()):
        raise BadInput(f"{SOURCES[kind]}: the field is empty; enter the draft to import.")
    if layout and layout not in TITLES:
        raise BadInput(f"Format: {layout[:40]!r} is unknown; reload the page.")
    if kind == "hub":
        location = hub_id(location.strip())
    elif kind == "folder":
        location = str(_folder(settings, location))
    else:
        _uploaded(uploads or ())
        location = str(settings.home / "uploads" / uuid.uuid4().hex / (portable_name(name or "")[:80] or "upload"))
    return ImportDraft(source=kind, location=location, base_id=base_id, layout=layout or "")


def link_uploads(uploads: Sequence[str], request: ImportDraft) -> None:
    """Put uploads into the request's folder as hard links, which remain when the uploads are cleaned up."""
    folder = Path(request.location)
    folder.mkdir(parents=True)
    for path in _uploaded(uploads):
        try:
            os.link(path, folder / path.name)
        except OSError:  # a file system without hard links
            shutil.copy2(path, folder / path.name)


def _uploaded(uploads: Sequence[str]) -> list[Path]:
    paths = [Path(path) for path in uploads]
    if missing := next((path for path in paths if not path.is_file()), None):
        raise BadInput(f"Upload: {missing.name} no longer exists; choose the files again.")
    return draft_files(paths)


def _folder(settings: Settings, text: str) -> Path:
    """A folder with a draft's files."""
    folder = readable(settings, text.strip())
    if not folder.is_dir():
        raise BadInput(f"Local folder: there is no folder {folder}.")
    try:
        draft_files([path for path in folder.iterdir() if path.is_file()])
    except OSError as error:
        raise BadInput(f"Local folder: {folder} cannot be read ({error.strerror}).") from None
    return folder
