"""Fields that a browser remembers, and presets that set several at once. All in the browser: no event reaches us."""

import json
from typing import Any

import gradio as gr
from gradio.context import Context

PRESETS = {
    "Precise (greedy)": (0.0, 1.0, 0),
    "Balanced": (0.7, 0.9, 0),
    "Creative": (1.0, 0.95, 100),
}
"""Temperature, top-p and top-k by name. The first is what the fields begin with."""


def wire_presets(preset: gr.Radio, fields: list[Any]) -> None:
    """A preset sets `fields`; a field that is moved by hand says whether they still are one."""
    values = json.dumps(PRESETS)
    chosen = f"(name, ...now) => ({values})[name] || now"
    named = f"(...now) => (Object.entries({values}).find(([, own]) => own.every((v, i) => v === now[i])) || [null])[0]"
    preset.input(None, [preset, *fields], fields, js=chosen, api_visibility="private")
    for field in fields:
        field.change(None, fields, preset, js=named, api_visibility="private")


def keep(name: str, fields: list[Any]) -> None:
    """Have this browser remember what `fields` are set to, over reloads and pages (static/keep.js)."""
    restore = f"(...now) => window.speculoos.kept?.({json.dumps(name)}, ...now) || now"
    store = f"(...now) => {{ window.speculoos.keep?.({json.dumps(name)}, ...now); }}"
    Context.root_block.load(None, fields, fields, js=restore, api_visibility="private")
    gr.on([field.change for field in fields], None, fields, None, js=store, api_visibility="private")
