"""Looking for a base model on the hub: a box, what was found with size and licence, and a click that takes a name."""

from collections.abc import Callable, Sequence

import gradio as gr

from app.forms import hub_id
from app.views.manage import SMALL
from app.views.model_view import count
from app.widgets.elements import QUIET, badge, block, notice
from app.widgets.fields import one_line
from app.widgets.formatting import size
from app.widgets.picker import table
from app.widgets.problems import saying_errors, sentence
from app.widgets.text import safe, tag
from models.hub_search import LONGEST, HubModel, search
from speculoos.errors import SpeculoosError

COLUMNS = ["Model", "Parameters", "Weights", "Licence", "Fetched", "Drafts"]
NONE = "The hub has no text model with safetensors whose name has this in it; look for a shorter part of it."
FOUND = "{} on the hub, those fetched most in a month first. Take one, then press Add model."
TAKEN = "{} is in the box below; press Add model to fetch it."
TAKE = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-repo]');
  if (button) trigger('take', {wanted: button.dataset.repo});
});
"""


class HubSearch:
    """The components, inside the current Blocks. `wire` says where a name goes that was taken."""

    def __init__(self, find: Callable[[str], Sequence[HubModel]] = search):
        self.find = find
        with gr.Column(elem_id="models-hub") as self.all:
            example = "a part of its name, such as SmolLM2"
            self.words = one_line("Look for it on the hub", "models-hub-words", placeholder=example, max_length=LONGEST)
            with gr.Row(elem_classes="sp-buttons"):
                self.start = gr.Button("Search the hub", elem_id="models-hub-search", **SMALL)
            self.found = gr.HTML(elem_id="models-hub-found", js_on_load=TAKE, apply_default_css=False)
            self.said = block(elem_id="models-hub-said")

    def wire(self, location: gr.Textbox) -> None:
        """Searches, and a name that is taken."""
        asked = {**QUIET, "show_progress": "minimal"}
        gr.on([self.start.click, self.words.submit], self.searched, self.words, [self.found, self.said], **asked)
        self.found.take(self.taken, None, [location, self.said], **QUIET)

    @saying_errors("", tone="warn")
    def searched(self, words: str) -> tuple[str, str]:
        """What was found, or why nothing was; what was said of a name before goes."""
        return results(self.find(words or "")), ""

    @staticmethod
    def taken(event: gr.EventData) -> tuple[object, str]:
        """The name for the box below."""
        try:
            repo = hub_id(str(getattr(event, "wanted", "")))
        except SpeculoosError as error:
            return gr.skip(), notice(sentence(error), "bad")
        return repo, notice(TAKEN.format(repo), "good")


def results(found: Sequence[HubModel]) -> str:
    """A table of models, or that there is none."""
    if not found:
        return notice(NONE, "info")
    number = "One model" if len(found) == 1 else f"{len(found)} models"
    rows = table(COLUMNS, [_row(each) for each in found], "Models of the hub", True, COLUMNS[1:])
    return tag("div", notice(FOUND.format(number), "info") + rows, class_="sp-stack")


def _row(found: HubModel) -> list[str]:
    take = tag("button", safe(found.repo), type="button", class_="sp-small-button", data_repo=found.repo)
    gated = " " + badge("gated", "warn") if found.gated else ""
    numbers = [count(found.parameters) if found.parameters else "–", size(found.size) if found.size else "–"]
    fetched = f"{found.downloads:,}" if found.downloads else "–"
    return [take + gated, *map(safe, (*numbers, found.licence or "not stated", fetched)), _drafts(found)]


def _drafts(found: HubModel) -> str:
    """Whether drafts can be made for it, as far as its config says."""
    if found.why_not:
        return badge("no", "bad") + tag("div", safe(found.why_not), class_="sp-row-note")
    kind = tag("div", safe(found.architecture or "said once it is here"), class_="sp-row-note")
    return (badge("yes", "good") if found.architecture else badge("not known")) + kind
