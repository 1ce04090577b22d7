"""The page that compares trainings: curves, figures, and settings that differ. `?ids=a,b` lists the jobs; `?over=` and
`?smooth=` select the x axis and the smoothing."""

import json
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.views import shell, trainings_tables, trainings_view
from app.views.trainings_view import SMOOTHEST, X_AXES, TrainingsView
from app.widgets.elements import (
    QUIET,
    block,
    closed_accordion,
    empty_state,
    hidden,
    notice,
    on_change,
    on_load,
    page_header,
)
from app.widgets.list_page import SIGNATURE_SEPARATOR, changed_parts
from app.widgets.picker import live
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import reports, trainings
from tracking.db import reading

PAGE = "trainings"
LEAD = "Curves in common charts, results side by side, and the settings that differ."
NOTHING = empty_state(
    "Nothing to compare yet",
    "Select two or more trainings on the page Jobs, then press Compare trainings.",
    "/jobs",
    "Go to Jobs",
)
WRITE = """(ids, over, smooth, seen) => {
  const address = new URL(location.href);
  for (const [key, value] of Object.entries({over: OVER[over] || '', smooth: smooth || ''})) {
    if (value) address.searchParams.set(key, value); else address.searchParams.delete(key);
  }
  history.replaceState(history.state, '', address.href.replaceAll('%2C', ','));
  return [ids, over, smooth, seen];
}""".replace("OVER[over]", f"{json.dumps(X_AXES)}[over]")


def now(session: Session, ids: str) -> str:
    """Signature of what the page shows."""
    return f"{ids}|{trainings.signature(session, TrainingsView.of({'ids': ids}).ids)}"


def build(settings: Settings) -> None:
    """Wire the page inside the current Blocks."""
    page_header("Compare trainings", LEAD)
    shell.tabs(f"/{PAGE}")
    TrainingsPage(settings).wire()


class TrainingsPage:
    """The components. Everything shown depends on the URL and the rows only."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.ids, self.seen = hidden("trainings-ids"), hidden("trainings-seen")
        self.problem = block(elem_id="trainings-problem")
        with gr.Column(visible=False, elem_id="trainings-shown") as self.column:
            self.differ = block(elem_id="trainings-settings")
            with gr.Row(elem_classes="sp-find", elem_id="trainings-how"):
                self.over = gr.Radio(list(X_AXES), value=next(iter(X_AXES)), label="X axis", elem_id="trainings-over")
                self.smooth = gr.Slider(
                    0, SMOOTHEST, 0, step=0.05, label="Smoothing of training curves", elem_id="trainings-smooth"
                )
            self.axis = block(elem_id="trainings-axis")
            self.charts = block(elem_id="trainings-charts")
            with closed_accordion("All other curves", elem_id="trainings-more"):
                self.more = block(elem_id="trainings-more-charts")
            self.bars = block(elem_id="trainings-bars")
            self.figures = live("trainings-figures")
        shown = [self.differ, self.axis, self.charts, self.more, self.bars, self.figures]
        self.live = [self.problem, self.column, *shown]

    def wire(self) -> None:
        """Connect the events: opening, the two controls, the poll."""
        on_load(self.open_address, [self.ids, self.over, self.smooth, self.seen, *self.live])
        shown = [self.ids, self.over, self.smooth, self.seen]
        gr.on(
            [self.over.input, self.smooth.release, self.smooth.input],
            self.redraw,
            shown,
            [self.seen, *self.live],
            js=WRITE,
            trigger_mode="always_last",
            **QUIET,
        )
        on_change(PAGE, self.poll, shown, [self.seen, *self.live], chosen="trainings-ids", seen="trainings-seen")

    def open_address(self, request: gr.Request) -> list[Any]:
        """Show the view of the URL."""
        view = TrainingsView.of({key: str(value) for key, value in request.query_params.items()})
        over = next(words for words, key in X_AXES.items() if key == view.over)
        return [",".join(view.ids), over, view.smooth, *self.redraw(",".join(view.ids), over, view.smooth, "")]

    def redraw(self, ids: str, over: str, smooth: float, seen: str) -> list[Any]:
        """The parts that differ from `seen`."""
        try:
            with reading(self.settings) as session:
                return changed_parts(seen, now(session, ids), drawn(session, view_of(ids, over, smooth)))
        except SpeculoosError as error:
            return ["", notice(str(error), "bad"), *[gr.skip()] * (len(self.live) - 1)]

    def poll(self, ids: str, over: str, smooth: float, seen: str) -> Any:
        """The parts that changed since `seen`; gr.skip() if the signature is the same."""
        try:
            with reading(self.settings) as session:
                known = now(session, ids) == seen.partition(SIGNATURE_SEPARATOR)[0]
        except SpeculoosError:
            return gr.skip()
        return gr.skip() if known else self.redraw(ids, over, smooth, seen)


def view_of(ids: str, over: str, smooth: float) -> TrainingsView:
    """The view of the components' values."""
    return TrainingsView.of({"ids": ids, "over": X_AXES.get(over, ""), "smooth": smooth})


def drawn(session: Session, view: TrainingsView) -> list[Any]:
    """Values of `live`."""
    found = trainings.find(session, view.ids)
    pairs = zip(trainings_view.labels(found.trainings), found.trainings, strict=True)
    metrics = {label: reports.sampled_metrics(session, training.job.id) for label, training in pairs}
    first, more = trainings_view.charts(metrics, view.over, view.smooth)
    return [
        trainings_view.missing_jobs_notice(found) if view.ids else NOTHING,
        gr.Column(visible=bool(found.trainings)),
        trainings_tables.settings_table(found.trainings),
        trainings_view.without_axis(metrics, view.over),
        first,
        more,
        trainings_tables.bars(found.trainings),
        trainings_tables.figures_table(found.trainings, metrics, view),
    ]
