"""Forms of the operator's own job kinds, made from their fields, on the jobs page."""

from typing import Any

from app.links import on_event_open
from app.views.job_start import form_end, started
from app.widgets.elements import closed_accordion, on_typing
from app.widgets.fields import one_line
from app.widgets.problems import show_errors
from app.widgets.review import review
from app.widgets.setting_fields import field_values, setting_rows
from ops.homes import names
from speculoos.settings import Settings
from tracking.db import reading
from workers.jobs.request import Request, command_for
from workers.jobs.requests import own_kinds
from workers.jobs.submit import check_and_estimate


def own_kind_forms(settings: Settings) -> None:
    """One form per kind, inside the current Blocks."""
    for kind in own_kinds():
        JobForm(settings, kind)


class JobForm:
    def __init__(self, settings: Settings, kind: type[Request]):
        self.settings, self.kind = settings, kind
        prefix = f"new-{kind.kind.replace('_', '-')}"
        with closed_accordion(kind.title, elem_id=prefix):
            self.fields = setting_rows(kind.options().values(), lambda name: f"{prefix}-{name.replace('_', '-')}")
            self.name = one_line("Name (optional)", f"{prefix}-name", max_length=200)
            self.review, self.message, self.start, self.target = form_end(prefix, "Start")
        values = [self.name, *self.fields.values()]
        on_typing(values, self.review_now, values, self.review)
        on_event_open(self.start.click, self.submit, values, self.message, self.target)

    def request(self, *values: Any) -> Request:
        """Raises BadInput with the label of the field."""
        return self.kind(**field_values(self.kind, dict(zip(self.fields, values, strict=True))))

    @show_errors(tone="warn")
    def review_now(self, name: str, *values: Any) -> str:
        """The estimate and the command that does the same."""
        request = self.request(*values)
        estimate = check_and_estimate(self.settings, request)
        with reading(self.settings) as session:
            return review(estimate, command_for(request, names(session), name.strip()))

    def submit(self, name: str, *values: Any) -> tuple[str, str]:
        return started(self.settings, lambda: self.request(*values), name=name)
