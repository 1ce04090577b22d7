"""Paths of the pages, and the six sections of the navigation."""

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
SECTIONS = {
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
"""Section → its pages and their tabs. The link of a section opens its first page."""
NEEDS_ROWS = ("trainings",)  # pages without a tab while another page is open: their URL names the rows to show
MOVED = ("compare", "checkpoints", "jobs", "train", "experiments", "trainings", "evaluations", "storage")
"""Pages whose path was `/` and their name in version 0.1. These paths redirect."""


def section_of(page: str) -> str:
    """The section of a page; "" for Home."""
    return next((section for section, pages in SECTIONS.items() if page in pages), "")
