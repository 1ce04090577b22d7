"""Paths of the pages, and the six places of the navigation that they belong to."""

from app.i18n import N_

PAGES = {
    "home": "/",
    "playground": "/playground",
    "compare": "/playground/compare",
    "models": "/models",
    "checkpoints": "/models/drafts",
    "servers": "/models/servers",
    "data": "/data",
    "jobs": "/runs",
    "guided": "/runs/guided",
    "train": "/runs/new",
    "experiments": "/runs/experiments",
    "trainings": "/runs/compare",
    "evaluations": "/results",
    "settings": "/settings",
    "storage": "/settings/storage",
}
"""Name of a page, that of its module in `app/pages/` → its path."""
PLACES = {
    N_("Playground"): {"playground": N_("Chat"), "compare": N_("Compare")},
    N_("Models"): {"models": N_("Base models"), "checkpoints": N_("Drafts"), "servers": N_("Servers")},
    N_("Data"): {"data": N_("Data")},
    N_("Runs"): {
        "jobs": N_("Jobs"),
        "guided": N_("Guided run"),
        "train": N_("Train"),
        "experiments": N_("Experiments"),
        "trainings": N_("Compare training runs"),
    },
    N_("Results"): {"evaluations": N_("Results")},
    N_("Settings"): {"settings": N_("Settings"), "storage": N_("Storage")},
}
"""Place → its pages and their tabs; the first page is where the place's link leads."""
NEEDS_ROWS = ("trainings",)  # pages without a tab while another page is open: their URL names the rows to show
MOVED = ("compare", "checkpoints", "jobs", "train", "experiments", "trainings", "evaluations", "storage")
"""Pages whose path was `/` and their name in version 0.1. These paths redirect."""


def place_of(page: str) -> str:
    """The place of a page; "" for Home."""
    return next((place for place, pages in PLACES.items() if page in pages), "")
