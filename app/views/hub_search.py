"""Search for a base model on the Hugging Face Hub: field, results with size and licence, buttons to select a model."""

from collections.abc import Callable, Sequence

import gradio as gr

from app.forms import hub_id
from app.views.manage import SMALL
from app.views.model_view import count
from app.widgets.elements import QUIET, badge, block, notice
from app.widgets.fields import one_line
from app.widgets.formatting import size
from app.widgets.picker import table
from app.widgets.problems import error_text, show_errors
from app.widgets.text import safe, tag
from models.hub_search import MAX_QUERY, HubModel, search
from speculoos.errors import SpeculoosError

COLUMNS = ["Model", "Parameters", "Weights", "Licence", "Downloads", "Drafts"]
NONE = "No text model with safetensors on the Hub has this in its name. Search for a shorter part of it."
FOUND = "{} on the Hub, by downloads in the last month. Select one, then press Add model."
TAKEN = "{} is selected. Press Add model to download it."
TAKE = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-repo]');
  if (button) trigger('take', {wanted: button.dataset.repo});
});
"""


class HubSearch:
    """The components, inside the current Blocks. `wire` connects them to the field of the selected name."""

    def __init__(self, find: Callable[[str], Sequence[HubModel]] = search):
        self.find = find
        with gr.Column(elem_id="models-hub") as self.all:
            example = "part of the name, such as SmolLM2"
            self.words = one_line("Search the Hub", "models-hub-words", placeholder=example, max_length=MAX_QUERY)
            with gr.Row(elem_classes="sp-buttons"):
                self.start = gr.Button("Search", elem_id="models-hub-search", **SMALL)
            self.found = gr.HTML(elem_id="models-hub-found", js_on_load=TAKE, apply_default_css=False)
            self.said = block(elem_id="models-hub-said")

    def wire(self, location: gr.Textbox) -> None:
        """Connect the events; `location` receives the selected name."""
        options = {**QUIET, "show_progress": "minimal"}
        gr.on([self.start.click, self.words.submit], self.searched, self.words, [self.found, self.said], **options)
        self.found.take(self.taken, None, [location, self.said], **QUIET)

    @show_errors("", tone="warn")
    def searched(self, words: str) -> tuple[str, str]:
        """The results or an error; clears the message about a selected name."""
        return results(self.find(words or "")), ""

    @staticmethod
    def taken(event: gr.EventData) -> tuple[object, str]:
        """The selected name for the field, and a message."""
        try:
            repo = hub_id(str(getattr(event, "wanted", "")))
        except SpeculoosError as error:
            return gr.skip(), notice(error_text(error), "bad")
        return repo, notice(TAKEN.format(repo), "good")


def results(models: Sequence[HubModel]) -> str:
    if not models:
        return notice(NONE, "info")
    number = "One model" if len(models) == 1 else f"{len(models)} models"
    rows = table(COLUMNS, [_row(model) for model in models], "Models of the hub", True, COLUMNS[1:])
    return tag("div", notice(FOUND.format(number), "info") + rows, class_="sp-stack")


def _row(model: HubModel) -> list[str]:
    take = tag("button", safe(model.repo), type="button", class_="sp-small-button", data_repo=model.repo)
    gated = " " + badge("gated", "warn") if model.gated else ""
    numbers = [count(model.parameters) if model.parameters else "–", size(model.size) if model.size else "–"]
    fetched = f"{model.downloads:,}" if model.downloads else "–"
    return [take + gated, *map(safe, (*numbers, model.licence or "not stated", fetched)), _drafts(model)]


def _drafts(model: HubModel) -> str:
    if model.why_not:
        return badge("no", "bad") + tag("div", safe(model.why_not), class_="sp-row-note")
    kind = tag("div", safe(model.architecture or "known after the download"), class_="sp-row-note")
    return (badge("yes", "good") if model.architecture else badge("unknown")) + kind
