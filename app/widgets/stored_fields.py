"""Fields stored by the browser, and presets that set several fields. Both run in the browser, without server events."""

import json
from typing import Any

import gradio as gr
from gradio.context import Context

PRESETS = {
    "Precise (greedy)": (0.0, 1.0, 0),
    "Balanced": (0.7, 0.9, 0),
    "Creative": (1.0, 0.95, 100),
}
"""Name → temperature, top-p, top-k. The first is the default."""


def wire_presets(preset: gr.Radio, fields: list[Any]) -> None:
    """A preset sets `fields`; a change of a field selects the preset that matches, or none."""
    values = json.dumps(PRESETS)
    chosen = f"(name, ...now) => ({values})[name] || now"
    named = f"(...now) => (Object.entries({values}).find(([, own]) => own.every((v, i) => v === now[i])) || [null])[0]"
    preset.input(None, [preset, *fields], fields, js=chosen, api_visibility="private")
    for field in fields:
        field.change(None, fields, preset, js=named, api_visibility="private")


def store_fields(name: str, fields: list[Any]) -> None:
    """Store the values of `fields` in the browser, across reloads and pages (static/keep.js)."""
    restore = f"(...now) => window.speculoos.kept?.({json.dumps(name)}, ...now) || now"
    store = f"(...now) => {{ window.speculoos.keep?.({json.dumps(name)}, ...now); }}"
    Context.root_block.load(None, fields, fields, js=restore, api_visibility="private")
    gr.on([field.change for field in fields], None, fields, None, js=store, api_visibility="private")
