"""What forms that ask for one job have in common: the command beside them, and the start."""

from collections.abc import Callable

import gradio as gr

from app import visitor
from app.views import manage
from app.views.manage import SMALL
from app.widgets.elements import block, hidden, notice
from app.widgets.problems import show_errors
from app.widgets.review import command_box
from ops.homes import names
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Checkpoint
from workers.jobs.command_line import command_for
from workers.jobs.requests import Request
from workers.jobs.submit import submit


def form_end(prefix: str, words: str) -> tuple[gr.HTML, gr.HTML, gr.Button, gr.Textbox]:
    """What stands below the fields: the review, what came of the start, its button, and (hidden) where it leads."""
    review, said = block(elem_id=f"{prefix}-review"), block(elem_id=f"{prefix}-said")
    start = gr.Button(words, variant="primary", elem_id=f"{prefix}-start", **SMALL)
    return review, said, start, hidden(f"{prefix}-target")


@show_errors(tone="warn")
def command_of(settings: Settings, request: Callable[[], Request]) -> str:
    """The command that does the same, or what is wrong with what was filled in."""
    asked = request()
    with reading(settings) as session:
        return command_box(command_for(asked, names(session)))


@show_errors("")
def started(settings: Settings, request: Callable[[], Request], page: str = "jobs", name: str = "") -> tuple[str, str]:
    """Submit what a form says: (notice, where to go: that job on `page`). `name` is of what the job makes."""
    job = submit(request(), name=name.strip(), user=visitor.user(), settings=settings)
    return "", f"/{page}?id={job.id}"


@show_errors()
def queued(settings: Settings, checkpoint_id: str, request: Callable[[Checkpoint], Request], what: str) -> str:
    """Submit what is asked of a checkpoint; says that `what` is queued, or why not."""
    with reading(settings) as session:
        row = manage.row(session, Checkpoint, "checkpoint", checkpoint_id)
    job = submit(request(row), user=visitor.user(), settings=settings)
    return notice(f"Queued: {what}.", "good", f"/jobs?id={job.id}", "See the job")
