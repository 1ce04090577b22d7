"""Form controls made from the fields of a job kind or of a training's settings, and their values read back."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import gradio as gr

from app.i18n import t
from models.methods.settings import Setting
from workers.jobs.request import Request


def setting_control(setting: Setting, elem_id: str, **options: Any) -> Any:
    """The control for one field, with its label, help and default; `options` replace these, or go to Gradio."""
    common = {"label": t(setting.label), "info": t(setting.help), **options}
    default = common.pop("value", None if setting.required else setting.default)
    if setting.kind is bool:
        return gr.Checkbox(bool(default), elem_id=elem_id, **common)
    if setting.choices:
        return gr.Dropdown(list(setting.choices), value=default, elem_id=elem_id, **common)
    if setting.kind in (int, float) and default is not None:
        return gr.Number(default, precision=0 if setting.kind is int else None, elem_id=elem_id, **common)
    if isinstance(default, dict) or default is None:
        default = ""
    text = {"value": box_value(default), "max_lines": 1, **common}  # also for open numbers: an empty gr.Number sends 0
    return gr.Textbox(elem_id=elem_id, **text)


def setting_rows(settings: Iterable[Setting], elem_id: Callable[[str], str]) -> dict[str, Any]:
    """Controls by field: switches in a row of their own, as their labels are squeezed beside other controls."""
    controls = {}
    settings = list(settings)
    for switches in (False, True):
        with gr.Row():
            for setting in settings:
                if (setting.kind is bool) == switches:
                    controls[setting.name] = setting_control(setting, elem_id(setting.name), min_width=230)
    return controls


def box_value(value: Any) -> Any:
    """A value as its control shows it: lists as `1, 14, 26`."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def entered(controls: Mapping[str, Any], query: Mapping[str, str | None]) -> dict[str, Any]:
    """Values in the URL for `controls`, as `elements.keep_in_address` writes them. Invalid ones are left out; dropdowns
    without choices accept any."""
    values: dict[str, Any] = {}
    for name, control in controls.items():
        text = query.get(name)
        if text is None:
            continue
        if isinstance(control, gr.Checkbox):
            values[name] = text == "true"
        elif isinstance(control, gr.Number):
            with suppress(ValueError):
                values[name] = float(text) if text else None
        elif getattr(control, "multiselect", None):
            values[name] = [*filter(None, text.split(","))]
        elif not getattr(control, "choices", None) or text in [value for _, value in control.choices]:
            values[name] = text
    return values


def field_values(kind: type[Request], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of controls as fields of a request: an empty control means the default, texts are stripped."""
    filled = {name: value.strip() if isinstance(value, str) else value for name, value in values.items()}
    return {name: value for name, value in filled.items() if name in kind.model_fields and value not in (None, "")}
