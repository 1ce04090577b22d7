"""Controls of the advanced training settings, one per field of every method, with its help text.

Fields of other methods are hidden with their group; `named` and `fill` use the order of `inputs`.
"""

from typing import Any

import gradio as gr

from app.widgets.elements import closed_accordion
from app.widgets.setting_fields import setting_control
from models.methods import METHODS, SETTINGS
from models.methods.settings import Setting

GROUPS: dict[str, tuple[str, ...]] = {
    "Duration": ("epochs", "max_steps", "max_minutes", "patience"),
    "Data": (
        "max_length",
        "batch_tokens",
        "accumulate",
        "held_out",
        "max_held_out",
        "cache_features_mb",
        "cache_disk_gb",
    ),
    "Hidden states": ("hidden_states", "hidden_states_ahead", "hidden_states_store"),
    "Optimizer": ("optimizer", "lr", "schedule", "warmup_ratio", "weight_decay", "beta1", "beta2", "clip", "seed"),
    "Precision and device": ("device", "mixed_precision", "base_dtype", "save_dtype", "gradient_checkpointing"),
    "Logging and checkpoints": ("log_every", "eval_every", "save_every", "keep_last", "samples"),
}


class SettingControls:
    def __init__(self) -> None:
        self.controls: dict[str, Any] = {}
        self.groups = {method: self._method_group(method) for method in METHODS}
        grouped = {name for names in GROUPS.values() for name in names}
        for title, names in GROUPS.items():
            self._group(title, [SETTINGS[name] for name in names if name in SETTINGS])
        others = [s for s in SETTINGS.values() if len(s.methods) != 1 and s.name not in grouped and s.name != "method"]
        if others:
            self._group("More", others)

    @property
    def inputs(self) -> list[Any]:
        return list(self.controls.values())

    def fill(self, values: dict[str, Any]) -> list[Any]:
        return [values[name] for name in self.controls]

    def show(self, method: str) -> list[Any]:
        """Visibility updates for `groups.values()`."""
        return [gr.Column(visible=name == method) for name in self.groups]

    def named(self, values: tuple[Any, ...], method: str) -> dict[str, Any]:
        """Values of `inputs` as settings, without settings of other methods."""
        by_name = dict(zip(self.controls, values, strict=True))
        return {k: v for k, v in by_name.items() if not SETTINGS[k].methods or method in SETTINGS[k].methods}

    def _method_group(self, method: str) -> gr.Column:
        with gr.Column(visible=method == next(iter(METHODS))) as group:
            self._group(METHODS[method].title, [s for s in SETTINGS.values() if s.methods == (method,)])
        return group

    def _group(self, title: str, settings: list[Setting]) -> None:
        kind = gr.Accordion if title in {method.title for method in METHODS.values()} else closed_accordion
        with kind(title, elem_classes="sp-settings"), gr.Row():
            for setting in settings:
                self.controls[setting.name] = control(setting)


def control(setting: Setting) -> Any:
    """The control of a setting; its label has the command-line name if that differs."""
    label = setting.label if setting.label.lower() == setting.name else f"{setting.label} · {setting.name}"
    common = {"label": label, "min_width": 230, "elem_id": f"set-{setting.name}"}
    if setting.is_open:
        return gr.Number(None, precision=0, placeholder="from the data", info=setting.help, **common)
    return setting_control(setting, **common)
