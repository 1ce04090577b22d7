"""Controls of the advanced training settings, one per field of every method, with its help text.

Fields of other methods are hidden with their group.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import gradio as gr

from app.i18n import N_, t
from app.views.verdict import BEST_METHOD
from app.widgets.elements import closed_accordion
from app.widgets.setting_fields import setting_control
from models.methods import METHODS, SETTINGS
from models.methods.settings import Setting

GROUPS: dict[str, tuple[str, ...]] = {
    N_("Duration"): ("epochs", "max_steps", "max_minutes", "patience"),
    N_("Data"): (
        "max_length",
        "batch_tokens",
        "accumulate",
        "held_out",
        "max_held_out",
        "cache_features_mb",
        "cache_disk_gb",
    ),
    N_("Hidden states"): ("hidden_states", "hidden_states_ahead", "hidden_states_store"),
    N_("Optimizer"): ("optimizer", "lr", "schedule", "warmup_ratio", "weight_decay", "beta1", "beta2", "clip", "seed"),
    N_("Precision and device"): ("device", "mixed_precision", "base_dtype", "save_dtype", "gradient_checkpointing"),
    N_("Logging and checkpoints"): ("log_every", "eval_every", "save_every", "keep_last", "samples"),
}


class SettingControls:
    def __init__(self) -> None:
        self.controls: dict[str, Any] = {}
        self.groups: dict[str, gr.Column] = {}
        for name, method in METHODS.items():
            group = gr.Column(visible=name == BEST_METHOD)
            with group, gr.Accordion(t(method.title), elem_classes="sp-settings"), gr.Row():
                self._add(s for s in SETTINGS.values() if s.methods == (name,))
            self.groups[name] = group
        grouped = {name for names in GROUPS.values() for name in names}
        others = tuple(s.name for s in SETTINGS.values() if len(s.methods) != 1 and s.name not in {*grouped, "method"})
        for title, names in {**GROUPS, **({N_("More"): others} if others else {})}.items():
            with closed_accordion(t(title), elem_classes="sp-settings"), gr.Row():
                self._add(SETTINGS[name] for name in names if name in SETTINGS)

    def _add(self, settings: Iterable[Setting]) -> None:
        self.controls |= {setting.name: control(setting) for setting in settings}

    def fill(self, values: dict[str, Any]) -> list[Any]:
        return [values[name] for name in self.controls]

    def show(self, method: str) -> list[Any]:
        """Visibility updates for `groups.values()`."""
        return [gr.Column(visible=name == method) for name in self.groups]

    def named(self, values: Mapping[str, Any], method: str) -> dict[str, Any]:
        """Those of `values` that are settings of the method."""
        names = (name for name in self.controls if method in (SETTINGS[name].methods or (method,)))
        return {name: values[name] for name in names}


def control(setting: Setting) -> Any:
    """The control of a setting; its label has the command-line name if that differs."""
    label = t(setting.label) if setting.label.lower() == setting.name else f"{t(setting.label)} · {setting.name}"
    common = {"label": label, "min_width": 230, "elem_id": f"set-{setting.name}"}
    if setting.is_open:
        return gr.Number(None, precision=0, placeholder=t("from the data"), info=t(setting.help), **common)
    return setting_control(setting, **common)
