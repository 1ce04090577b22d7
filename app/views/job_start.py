"""Shared parts of forms that submit one job: the equivalent command and the start."""

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
from workers.jobs.request import command_for
from workers.jobs.requests import Request
from workers.jobs.submit import submit


def form_end(prefix: str, words: str) -> tuple[gr.HTML, gr.HTML, gr.Button, gr.Textbox]:
    """Components below the fields: review, result of the start, start button, and (hidden) the URL to open."""
    review, said = block(elem_id=f"{prefix}-review"), block(elem_id=f"{prefix}-said")
    start = gr.Button(words, variant="primary", elem_id=f"{prefix}-start", **SMALL)
    return review, said, start, hidden(f"{prefix}-target")


@show_errors(tone="warn")
def command_of(settings: Settings, request: Callable[[], Request]) -> str:
    """The equivalent command, or the error in the form."""
    built = request()
    with reading(settings) as session:
        return command_box(command_for(built, names(session)))


@show_errors("")
def started(settings: Settings, request: Callable[[], Request], name: str = "") -> tuple[str, str]:
    """Submit the request of a form: (notice, URL of the job). `name` names the output of the job."""
    job = submit(request(), name=name.strip(), user=visitor.user(), settings=settings)
    return "", f"/jobs?id={job.id}"


@show_errors()
def queued(settings: Settings, checkpoint_id: str, request: Callable[[Checkpoint], Request], what: str) -> str:
    """Submit a request for a checkpoint; notice that `what` is queued, or the error."""
    with reading(settings) as session:
        row = manage.row(session, Checkpoint, "checkpoint", checkpoint_id)
    job = submit(request(row), user=visitor.user(), settings=settings)
    return notice(f"Queued: {what}.", "good", f"/jobs?id={job.id}", "Open the job")
