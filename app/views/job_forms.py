"""Forms that submit one job: name, review and start button below their fields. Also forms of custom job kinds."""

from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app import visitor
from app.i18n import t
from app.links import on_event_open
from app.views.choices import Choices, valid_choice, valid_choices
from app.views.manage import SMALL
from app.widgets.elements import HIDDEN, block, closed_accordion, keep_in_address, on_typing
from app.widgets.fields import one_line
from app.widgets.problems import show_errors
from app.widgets.review import review
from app.widgets.setting_fields import entered, field_values, setting_rows
from speculoos.settings import Settings
from tracking import queries
from tracking.db import reading
from workers.jobs.request import Request, command_for
from workers.jobs.submit import check_and_estimate, submit


class JobForm:
    """Name of the output, review and start button, inside the current Blocks, below the controls `fields`.

    `request_of(**values)` is the request for the values of `fields`, or raises BadInput. `note` is HTML above the
    review.
    """

    def __init__(
        self,
        settings: Settings,
        prefix: str,
        start_label: str,
        fields: Mapping[str, Any],
        request_of: Callable[..., Request],
        *,
        named: bool = False,
        note: Callable[[Session, Any], str] = lambda session, request: "",
    ):
        self.settings, self.fields, self.request_of, self.note = settings, fields, request_of, note
        self.name = one_line(t("Name (optional)"), f"{prefix}-name", max_length=200, visible=named)
        self.review, self.message = block(elem_id=f"{prefix}-review"), block(elem_id=f"{prefix}-message")
        start = gr.Button(start_label, variant="primary", elem_id=f"{prefix}-start", **SMALL)
        self.inputs = [self.name, *fields.values()]
        shown = {name: field for name, field in fields.items() if HIDDEN not in field.elem_classes}
        self.shown, self.outputs = shown, [*shown.values(), self.name, self.review, self.message]
        on_typing(self.inputs, self.review_now, self.inputs, self.review)
        on_event_open(start.click, self.submit, self.inputs, self.message)

    def keep_in_url(self) -> None:
        """Keep the form in the URL, for `fill`."""
        keep_in_address({field.elem_id: field for field in (self.name, *self.shown.values())})

    def is_entered(self, query: Mapping[str, str]) -> bool:
        """Whether the URL holds a value of the form."""
        return any(field.elem_id in query for field in self.shown.values())

    def fill(
        self, query: Mapping[str, str], values: Mapping[str, Any], choices: Mapping[str, Choices], review: bool = False
    ) -> list[Any]:
        """Values of `outputs`: those in the URL, otherwise `values`, otherwise the controls' own. `choices`: those of
        dropdowns. With the review if `review` is true or the URL holds a value."""
        current = {name: field.value for name, field in self.fields.items()} | dict(values)
        current |= entered(self.shown, {name: query.get(field.elem_id) for name, field in self.shown.items()})
        for name, options in choices.items():
            valid = valid_choices if isinstance(current[name], list) else valid_choice
            current[name] = valid(options, current[name])
        many = {name: isinstance(current[name], list) or None for name in choices}
        filled = {name: gr.Dropdown(choices[name], value=current[name], multiselect=many[name]) for name in choices}
        review_html = self.review_now("", *current.values()) if review or self.is_entered(query) else ""
        name = query.get(self.name.elem_id, "")
        return [*({**current, **filled}[field] for field in self.shown), name, review_html, ""]

    def _request(self, values: tuple[Any, ...]) -> Request:
        return self.request_of(**dict(zip(self.fields, values, strict=True)))

    @show_errors(tone="warn")
    def review_now(self, name: str, *values: Any) -> str:
        request = self._request(values)
        estimate = check_and_estimate(self.settings, request)
        with reading(self.settings) as session:
            command = command_for(request, queries.names(session), (name or "").strip())
            return self.note(session, request) + review(estimate, command)

    @show_errors("")
    def submit(self, name: str, *values: Any) -> tuple[str, str]:
        """Submit the job: (notice, its URL)."""
        settings, user = self.settings.current(), visitor.user()
        job = submit(self._request(values), name=(name or "").strip(), user=user, settings=settings)
        return "", f"/runs?id={job.id}"


def own_kind_form(settings: Settings, kind: type[Request]) -> JobForm:
    """The form of a custom job kind, inside the current Blocks."""
    prefix = f"new-{kind.kind.replace('_', '-')}"
    with closed_accordion(t(kind.title), elem_id=prefix):
        fields = setting_rows(kind.options().values(), lambda name: f"{prefix}-{name.replace('_', '-')}")
        return JobForm(
            settings, prefix, t("Start"), fields, lambda **values: kind(**field_values(kind, values)), named=True
        )
