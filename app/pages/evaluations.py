"""The Evaluations page: a leaderboard with filters and sorting, and forms that start evaluations.

The URL holds the state of the view; `?id=` opens one evaluation.
"""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.links import on_event_open
from app.turns import run_again
from app.views import evaluation_view, leaderboard
from app.views.manage import Manage
from app.views.matrix_form import MatrixForm, ServerForm
from app.widgets.elements import QUIET, block, hidden, notice, on_change, on_load, on_typing, page_header
from app.widgets.fields import dropdown
from app.widgets.picker import KEEP_FOCUS, pick, picker
from app.widgets.problems import show_errors
from app.widgets.text import safe
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import leaderboard as board
from tracking.db import reading
from tracking.leaderboard import DEFAULT_SORT, LeaderboardView
from tracking.paging import page as page_of
from tracking.tables import Evaluation, Job

LEAD = "Acceptance and speed of drafts on suites of questions, with intervals."
FILTERS = {
    "base": "Base model",
    "checkpoint": "Draft",
    "suite": "Questions",
    "prompts": "Number of questions",
    "temperature": "Temperature",
    "tree": "Tree",
    "machine": "Machine",
    "source": "Engine",
}
SORTS = {
    DEFAULT_SORT: "Speedup",
    "-tau": "τ",
    "-speed": "Tokens per second",
    "-made": "Newest",
    "model": "Model",
    "suite": "Questions",
}
ALL = [("All", "")]
REMEMBER = "(to) => { if (to) history.pushState({}, '', to); }"
STEPS = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-steps]');
  if (button) trigger('steps', {wanted: button.dataset.steps});
});
"""
NOW = "(_, ...rest) => [window.location.search, ...rest]"


def now(session: Session, row_id: str) -> str:
    signature = board.signature(session)
    if row_id:
        query = select(Evaluation.state, Job.version).outerjoin(Job, Job.id == Evaluation.job_id)
        signature += f".{session.execute(query.where(Evaluation.id == row_id)).one_or_none()}"
    return f"{row_id}|{signature}"


def build(settings: Settings) -> None:
    page_header("Results", LEAD)
    EvaluationsPage(settings).wire()


class EvaluationsPage:
    """The components. The URL determines all that is displayed."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.chosen, self.seen = hidden("evaluations-chosen"), hidden("evaluations-seen")
        self.url_query, self.address = hidden("evaluations-url-query"), hidden("evaluations-address")
        self.shown = hidden("evaluations-shown")
        self.problem = block(elem_id="evaluations-problem")
        with gr.Column(elem_id="evaluations-listing") as self.list:
            self.matrix, self.server = MatrixForm(settings), ServerForm(settings)
            with gr.Row(elem_classes="sp-filters"):
                labels = {**FILTERS, "sort": "Sort"}
                self.boxes = [
                    dropdown([], label=label, elem_id=f"evaluations-by-{key}", min_width=130)
                    for key, label in labels.items()
                ]
            self.away = block(elem_id="evaluations-away")
            self.table = picker("evaluations-table", main=True)
            self.chart = block(elem_id="evaluations-chart")
        with gr.Column(visible=False, elem_id="evaluations-detail") as self.detail:
            self.back = picker("evaluations-back")
            self.one = gr.HTML(elem_id="evaluation-one", js_on_load=KEEP_FOCUS + STEPS, apply_default_css=False)
            self.steps_message = block(elem_id="evaluation-steps-said")
            self.steps_target = hidden("evaluation-steps-target")
            self.manage = Manage(settings, Evaluation, "evaluation", "evaluation", self.chosen)
        self.live = [self.seen, self.away, self.table, self.chart, self.one]
        self.frame = [self.chosen, self.shown, self.problem, self.list, self.detail, self.back, *self.live]

    def wire(self) -> None:
        outputs = [*self.frame, *self.boxes]
        on_load(self.open_address, [*outputs, *self.matrix.opens, *self.server.opens, *self.manage.outputs])
        for listed in (self.table, self.back):
            listed.pick(
                self.pick, self.url_query, [*outputs, *self.manage.outputs], js=NOW, trigger_mode="always_last", **QUIET
            )
        event = on_typing(self.boxes, self.narrow, [self.url_query, *self.boxes], [*outputs, self.address], NOW)
        event.then(None, self.address, None, js=REMEMBER, api_visibility="private")
        seen = {"chosen": "evaluations-chosen", "seen": "evaluations-seen"}
        on_change("evaluations", self.poll, [self.chosen, self.shown, self.seen], self.live, **seen)
        self.manage.wire(self.redraw, [self.chosen, self.shown], outputs)
        on_event_open(self.one.steps, self.show_steps, self.chosen, self.steps_message, self.steps_target)

    def open_address(self, request: gr.Request) -> list[Any]:
        """The view of the URL, with the choices of the forms."""
        query = {key: str(value) for key, value in request.query_params.items()}

        def draw(session: Session) -> list[Any]:
            forms = [*self.matrix.opened(session), *self.server.opened(session)]
            return [*view_of(session, query), *forms, *self.manage.view(row_of(session, query))]

        return self._read(draw, len([*self.boxes, *self.matrix.opens, *self.server.opens, *self.manage.outputs]))

    def pick(self, url_query: str) -> list[Any]:
        """The view of the URL after a click or the back button of the browser."""
        query = _fields(url_query)
        return self._read(
            lambda session: [*view_of(session, query), *self.manage.view(row_of(session, query))],
            len(self.boxes) + len(self.manage.outputs),
        )

    def narrow(self, url_query: str, *values: Any) -> list[Any]:
        """The first page of the filtered list, and its URL."""
        filters = {key: str(value or "") for key, value in zip((*FILTERS, "sort"), values, strict=True)}
        view = LeaderboardView.of({**_fields(url_query), **filters})
        return self._read(
            lambda session: [*view_of(session, dict(parse_qsl(view.query()))), leaderboard.address(view)],
            len(self.boxes) + 1,
        )

    def redraw(self, row_id: str, shown: str) -> list[Any]:
        query = {**_fields(shown), "id": row_id}
        return self._read(lambda session: view_of(session, query), len(self.boxes))

    def poll(self, row_id: str, shown: str, seen: str) -> Any:
        """Values of `live` if something changed since `seen`."""
        try:
            with reading(self.settings) as session:
                if now(session, row_id) == seen:
                    return gr.skip()
                return drawn(session, {**_fields(shown), "id": row_id})
        except SpeculoosError:
            return gr.skip()

    @show_errors("")
    def show_steps(self, row_id: str, event: gr.EventData) -> tuple[str, str]:
        """Run one of its prompts again and record probabilities: (error notice, URL to open)."""
        chat, error = run_again(self.settings, row_id, str(getattr(event, "wanted", ""))[:8])
        return (notice(error, "bad"), "") if error else ("", f"/playground?chat={chat}")

    def _read(self, draw: Callable[[Session], list[Any]], other_count: int) -> list[Any]:
        """Values of the frame and `other_count` further outputs; if reading fails, an error notice and no updates."""
        try:
            with reading(self.settings) as session:
                return draw(session)
        except SpeculoosError as error:
            return ["", "", notice(str(error), "bad"), *[gr.skip()] * (len(self.frame) - 3 + other_count)]


def view_of(session: Session, query: Mapping[str, str]) -> list[Any]:
    """Values of the frame and of the boxes."""
    view, row = LeaderboardView.of(query), row_of(session, query)
    is_missing = bool(query.get("id")) and row is None
    problem = (
        notice("This evaluation does not exist: it was deleted, or the URL is wrong.", "warn") if is_missing else ""
    )
    start = query.get("from", "")[:64]
    back = leaderboard.address(view, **{"from": start})
    head = [row.id if row else "", view.query(**{"from": start}), problem]
    head += [gr.Column(visible=row is None), gr.Column(visible=row is not None)]
    head += [pick("evaluations", "", safe("← All evaluations"), class_="sp-back", href=back)]
    return [*head, *drawn(session, query), *_boxes(session, view)]


def drawn(session: Session, query: Mapping[str, str]) -> list[Any]:
    view, row = LeaderboardView.of(query), row_of(session, query)
    seen = now(session, row.id if row else "")
    if row:
        return [seen, gr.skip(), gr.skip(), gr.skip(), evaluation_view.view(session, row)]
    page = page_of(session, view.select(), query.get("from", "")[:64])
    names = leaderboard.names_of(session, page.rows)
    table = leaderboard.leaderboard(page, names, view)
    return [seen, leaderboard.download_links(view, page), table, leaderboard.chart(page.rows, names, view), ""]


def row_of(session: Session, query: Mapping[str, str]) -> Evaluation | None:
    return session.get(Evaluation, query["id"][:64]) if query.get("id") else None


def _boxes(session: Session, view: LeaderboardView) -> list[Any]:
    choices = board.filter_choices(session)
    boxes = [_box(ALL + choices[key], getattr(view, key)) for key in FILTERS]
    return [*boxes, _box([(label, key) for key, label in SORTS.items()], view.sort)]


def _box(choices: list[tuple[str, str]], value: str) -> gr.Dropdown:
    is_listed = value in {choice for _, choice in choices}
    return gr.Dropdown(choices if is_listed else [*choices, (value, value)], value=value)


def _fields(url_query: str) -> dict[str, str]:
    return dict(parse_qsl(str(url_query)[:4000].removeprefix("?")))
