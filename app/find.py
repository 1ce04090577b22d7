"""`GET /api/find?q=`: what the command palette (static/find.js) lists: pages, actions and rows by name."""

from typing import Any

from fastapi import APIRouter

from app.i18n import N_, t
from app.paths import PAGES, SECTIONS
from app.widgets.formatting import ago
from app.widgets.list_query import LONGEST, ListQuery, filtered_query
from speculoos.settings import Settings
from tracking import experiments, listing, queries
from tracking.db import reading
from tracking.tables import Base, Checkpoint, Dataset

ACTIONS = {
    N_("Chat with a model"): PAGES["playground"],
    N_("Compare models side by side"): PAGES["compare"],
    N_("Add a base model"): PAGES["models"],
    N_("Import a published draft"): PAGES["checkpoints"],
    N_("Import prompts or conversations"): PAGES["data"],
    N_("Generate training data"): PAGES["data"],
    N_("Train a draft"): PAGES["train"],
    N_("Evaluate a draft"): PAGES["evaluations"],
    N_("Free disk space"): PAGES["storage"],
    N_("Create an API key"): PAGES["settings"],
}
ROWS = {
    N_("Base model"): (queries.listed(Base), "models"),
    N_("Draft"): (queries.listed(Checkpoint), "checkpoints"),
    N_("Dataset"): (queries.listed(Dataset), "data"),
    N_("Job"): (listing.newest(), "jobs"),
    N_("Experiment"): (experiments.query(), "experiments"),
}
"""Kind of a row → the query of its list, and its page."""
MOST = 5  # maximum number of rows of one kind


def routes(settings: Settings) -> APIRouter:
    """GET /api/find."""
    router = APIRouter(prefix="/api")

    @router.get("/find")
    def find(q: str = "") -> list[dict[str, str]]:
        return results(settings, q[:LONGEST])

    return router


def results(settings: Settings, text: str) -> list[dict[str, str]]:
    """Entries that contain every word of `text`: name, kind, note and URL. Without words the pages and actions."""
    words = text.lower().split()
    fixed = [(t("Home"), t("Page"), PAGES["home"])]
    for section, pages in SECTIONS.items():
        for page, label in pages.items():
            fixed.append((t(section) if label == section else f"{t(section)}: {t(label)}", t("Page"), PAGES[page]))
    fixed += [(t(name), t("Action"), to) for name, to in ACTIONS.items()]
    entries = [
        {"name": name, "kind": kind, "note": "", "to": to}
        for name, kind, to in fixed
        if all(word in name.lower() for word in words)
    ]
    return entries + (_rows(settings, text) if words else [])


def _rows(settings: Settings, text: str) -> list[dict[str, Any]]:
    entries = []
    with reading(settings) as session:
        for kind, (query, page) in ROWS.items():
            for row in session.scalars(filtered_query(query, ListQuery(search=text)).limit(MOST)):
                to = f"{PAGES[page]}?id={row.id}"
                entries.append({"name": row.name, "kind": t(kind), "note": ago(row.created_at), "to": to})
    return entries
