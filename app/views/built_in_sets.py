"""The built-in data sets: a description of each and a button that adds it."""

from functools import partial
from typing import Any

import gradio as gr
from sqlalchemy import select

from app import visitor
from app.links import on_event_open
from app.views.manage import SMALL
from app.widgets.elements import badge, block, closed_accordion, hidden, notice, on_load
from app.widgets.problems import show_errors
from app.widgets.text import safe, tag
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Dataset
from workers.jobs.builtin import BUILT_IN, BuiltIn, added_sets
from workers.jobs.submit import add_built_in


class BuiltInSets:
    """The form, built inside the current Blocks; open if there is no data set yet."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.words: dict[str, gr.HTML] = {}
        self.buttons: dict[str, gr.Button] = {}
        with closed_accordion("Included data sets", elem_id="data-builtin") as self.box:
            for name, built_in in BUILT_IN.items():
                with gr.Row(elem_classes="sp-offer"):
                    self.words[name] = block(offer(built_in), elem_id=f"data-offer-{name}")
                    self.buttons[name] = gr.Button("Add", elem_id=f"data-add-{name}", **SMALL)
            self.said = block(elem_id="data-said-builtin")
            self.target = hidden("data-builtin-target")
        self._wire()

    def _wire(self) -> None:
        on_load(self.opened, [self.box, *self.words.values()])
        for name, button in self.buttons.items():
            on_event_open(button.click, partial(self.add, name), None, self.said, self.target)

    def opened(self) -> list[Any]:
        """Open the form if there is no data set; mark the sets that are already added."""
        try:
            with reading(self.settings) as session:
                added, has_data = added_sets(session), session.scalar(select(Dataset.id).limit(1))
        except SpeculoosError:
            return [gr.skip()] * (1 + len(self.words))
        offers = [offer(built_in, added.get(name, "")) for name, built_in in BUILT_IN.items()]
        return [gr.skip() if has_data else gr.Accordion(open=True), *offers]

    @show_errors("")
    def add(self, name: str) -> tuple[str, str]:
        """Add a set unless it exists: (notice, URL to open)."""
        dataset_id, job = add_built_in(name, user=visitor.user(), settings=self.settings)
        url = f"/data?id={dataset_id}"
        if job:
            return "", url
        return notice(f"“{name}” was added before.", "info", url, "Open it"), ""


def offer(built_in: BuiltIn, dataset_id: str = "") -> str:
    """HTML of a set: title, size, description, and a link if it is already added."""
    link = tag("a", "Open it", href=f"/data?id={dataset_id}") if dataset_id else ""
    count = tag("span", safe(f"{built_in.rows:,} rows, {built_in.name}"), class_="sp-row-note")
    state = badge("Added", "good") if dataset_id else ""
    head = tag(
        "div", tag("h2", safe(built_in.title), class_="sp-offer-title") + count + state + link, class_="sp-link-row"
    )
    return tag("div", head + tag("p", safe(built_in.lead), class_="sp-lead"))
