"""Form of the Settings page for rules that can change at run time: retention times and limits of jobs."""

from collections.abc import Mapping
from typing import Any

import gradio as gr

from app.forms import whole
from app.views.manage import SMALL
from app.widgets.elements import QUIET, block, notice, on_load, section
from app.widgets.fields import one_line
from app.widgets.problems import show_errors
from speculoos.settings import Settings
from tracking import rules
from tracking.db import reading
from tracking.rules import RetentionRule


class RulesForm:
    """The fields of some rules, inside the current Blocks. `then` says when saved values take effect."""

    def __init__(
        self, settings: Settings, name: str, some: Mapping[str, RetentionRule], title: str, lead: str, then: str
    ):
        self.settings, self.rules, self.then = settings, some, then
        section(title, lead)
        with gr.Row(elem_classes="sp-settings"):
            self.fields = [self._field(rule, each.label) for rule, each in some.items()]
        self.said = block(elem_id=f"{name}-said")
        self.save = gr.Button(f"Save {name}", variant="primary", elem_id=f"{name}-save", **SMALL)
        on_load(self.values, self.fields)
        self.save.click(self.kept, self.fields, self.said, **QUIET)

    def _field(self, name: str, label: str) -> gr.Textbox:
        configured = getattr(self.settings, name)
        words = f"{configured:,} (configured)" if configured or name in rules.RETENTION else UNSET.get(name, "")
        return one_line(label, f"rule-{name}", placeholder=words, min_width=220)

    def values(self) -> list[str]:
        """The saved value of each rule, "" for the default."""
        with reading(self.settings) as session:
            saved = rules.chosen_rules(session)
        return [str(saved.get(name, "")) for name in self.rules]

    @show_errors()
    def kept(self, *values: Any) -> str:
        texts = dict(zip(self.rules, values, strict=True))
        rules.save_rules(self.settings, {name: whole(self.rules[name].label, value) for name, value in texts.items()})
        return notice(f"Saved. They take effect {self.then}.", "good")


UNSET = {
    "job_memory_mb": "the machine's memory",
    "min_disk_mb": "1,024, less on small disks",
    "min_memory_mb": "512, less on small machines",
}
"""Default of a limit that is neither saved here nor configured."""
