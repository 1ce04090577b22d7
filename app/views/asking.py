"""What forms that ask for one job have in common: the command beside them, and the start."""

from collections.abc import Callable

from app import visitor
from app.views.manage import sentence
from app.widgets.elements import notice
from app.widgets.review import command_box
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading
from upkeep.homes import names
from workers.ask.command_line import command_for
from workers.ask.requests import Request
from workers.ask.submit import submit


def command_of(settings: Settings, request: Callable[[], Request]) -> str:
    """The command that does the same, or what is wrong with what was filled in."""
    try:
        asked = request()
        with reading(settings) as session:
            return command_box(command_for(asked, names(session)))
    except SpeculoosError as error:
        return notice(sentence(error), "warn")


def started(settings: Settings, request: Callable[[], Request], page: str = "jobs") -> tuple[str, str]:
    """Submit what a form says: (notice, where to go: that job on `page`)."""
    try:
        job = submit(request(), user=visitor.user(), settings=settings)
    except SpeculoosError as error:
        return notice(sentence(error), "bad"), ""
    return "", f"/{page}?id={job.id}"
