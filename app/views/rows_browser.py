"""Browser of a data set's rows with paging and search."""

from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app import arrivals, previews
from app.views import data_view
from app.views.manage import SMALL, row
from app.widgets.elements import QUIET, block, hidden_json, notice, on_typing
from app.widgets.fields import one_line
from app.widgets.problems import show_errors
from app.widgets.text import safe, tag
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Dataset

FIRST = ""
"""Position of the first row."""
MOST_PLACES = 10_000
LONGEST_WORDS = 200


class RowsBrowser:
    """The components, inside the current Blocks. `chosen` is the hidden text with the data set's id; `live` is redrawn
    when it changes."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings = settings
        self.find = one_line("Search the rows", "dataset-find", max_length=LONGEST_WORDS)
        self.preview = block(elem_id="dataset-preview")
        with gr.Row(elem_classes="sp-buttons"):
            self.before = gr.Button("← Before", elem_id="dataset-before", visible=False, **SMALL)
            self.after = gr.Button("After →", elem_id="dataset-after", visible=False, **SMALL)
        self.places = hidden_json("dataset-places", [])
        self.live = [self.preview, self.before, self.after, self.places]
        inputs, shown = [chosen, self.find, self.places], self.live
        on_typing([self.find], self._search, inputs[:2], shown)
        self.after.click(self._shown, inputs, shown, **QUIET)
        self.before.click(self._back, inputs, shown, **QUIET)

    def live_view(self, session: Session, data: Dataset) -> list[Any]:
        """Values of `live`: the first rows."""
        return self._drawn(session, data, "", [])

    def _search(self, data_id: str, words: str) -> list[Any]:
        return self._shown(data_id, words, [])

    def _back(self, data_id: str, words: str, places: Any) -> list[Any]:
        return self._shown(data_id, words, places[:-2] if isinstance(places, list) else [])

    @show_errors(gr.skip(), gr.skip(), gr.skip())
    def _shown(self, data_id: str, words: str, places: Any) -> list[Any]:
        with reading(self.settings) as session:
            data = row(session, Dataset, "data set", data_id)
            return self._drawn(session, data, words or "", places)

    def _drawn(self, session: Session, data: Dataset, words: str, places: Any) -> list[Any]:
        """The rows after the last of `places` (the pages shown before), and the paging buttons."""
        if data.state == "ready" and (waits := arrivals.download_notice(session, self.settings, data)):
            return [notice(waits, "info"), *self._buttons([], ""), []]
        known = [place for place in places if isinstance(place, str)][:MOST_PLACES] if isinstance(places, list) else []
        folder = arrivals.files_of(self.settings).path(data) if data.path else self.settings.home / "datasets" / data.id
        rows = previews.rows_from(folder, known[-1] if known else FIRST, words[:LONGEST_WORDS])
        masks = {} if words.strip() or known else previews.masked_rows(folder)
        html = data_view.preview(rows.rows, masks, words) + _early(rows)
        return [html, *self._buttons(known, rows.next), [*known, rows.next]]

    def _buttons(self, known: list[str], after: str) -> tuple[Any, Any]:
        return gr.Button(visible=bool(known)), gr.Button(visible=bool(after))


def _early(rows: previews.PreviewRows) -> str:
    """A note if the search stopped before the end."""
    words = f"Searched {previews.MOST_READ >> 20} MB; “After” continues the search."
    return "" if rows.whole else tag("p", safe(words), class_="sp-lead")
