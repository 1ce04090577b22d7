"""Form of the Settings page for retention times, which can change at run time."""

from typing import Any

import gradio as gr

from app.forms import whole
from app.views.manage import SMALL
from app.widgets.elements import QUIET, block, notice, on_load, section
from app.widgets.fields import one_line
from app.widgets.problems import show_errors
from speculoos.settings import Settings
from tracking.db import reading
from tracking.rules import RETENTION, chosen_rules, save_rules

LEAD = "Older items are removed once an hour. 0 keeps them forever; empty uses the configured value."


class RulesForm:
    """The fields of the rules, inside the current Blocks."""

    def __init__(self, settings: Settings):
        self.settings = settings
        section("Retention", LEAD)
        with gr.Row(elem_classes="sp-settings"):
            self.fields = [self._field(name) for name in RETENTION]
        self.said = block(elem_id="rules-said")
        self.save = gr.Button("Save rules", variant="primary", elem_id="rules-save", **SMALL)
        on_load(self.values, self.fields)
        self.save.click(self.kept, self.fields, self.said, **QUIET)

    def _field(self, name: str) -> gr.Textbox:
        words = f"{getattr(self.settings, name):,} (configured)"
        return one_line(RETENTION[name], f"rule-{name}", placeholder=words, min_width=220)

    def values(self) -> list[str]:
        """The saved value of each rule, "" for the default."""
        with reading(self.settings) as session:
            saved = chosen_rules(session)
        return [str(saved.get(name, "")) for name in RETENTION]

    @show_errors()
    def kept(self, *values: Any) -> str:
        texts = dict(zip(RETENTION, values, strict=True))
        save_rules(self.settings, {name: whole(RETENTION[name], value) for name, value in texts.items()})
        return notice("Saved. They take effect at the next hourly cleanup.", "good")
