"""Form fields that several pages share."""

from typing import Any

import gradio as gr

from app.turns import Sampling
from app.widgets.accordion import closed_accordion


def dropdown(*args: Any, **options: Any) -> gr.Dropdown:
    """A dropdown whose choices come from rows when a page is opened.

    Gradio checks a picked value against the choices of the session, which a restarted web process has forgotten: every
    open page would be refused. So the value is taken as it is, if it is text, and checked by who looks it up.
    """
    field = gr.Dropdown(*args, **options)
    field.preprocess = _texts  # type: ignore[method-assign]
    return field


def uploads(*args: Any, **options: Any) -> gr.File:
    """A box for several files of the visitor's own; its value is a list of paths. Gradio would leave an empty file
    behind for each of them at every event."""
    made = gr.File(*args, file_count="multiple", **options)
    made.preprocess = _paths  # type: ignore[method-assign]
    return made


def _paths(payload: Any) -> list[str]:
    return [file.path for file in payload or ()]


def _texts(payload: Any) -> str | list[str] | None:
    if isinstance(payload, list):
        return [item for item in payload if isinstance(item, str)]
    return payload if isinstance(payload, str) else None


def sampling_fields() -> list[gr.components.Component]:
    """Tokens at most, temperature, seed, system prompt: folded. `sampling_of` reads their values."""
    with closed_accordion("Sampling", elem_id="sampling"), gr.Row():
        limit = gr.Slider(8, 2048, value=256, step=8, label="Tokens at most", elem_id="max-tokens")
        temperature = gr.Slider(0, 2, value=0, step=0.05, label="Temperature (0: greedy)", elem_id="temperature")
        seed = gr.Number(None, label="Seed (empty: another each time)", precision=0, elem_id="seed")
        system = gr.Textbox(label="System prompt", lines=1, elem_id="system")
    return [limit, temperature, seed, system]


def sampling_of(limit: Any, temperature: Any, seed: Any, system: str) -> Sampling:
    """What the fields say."""
    return Sampling(int(limit or 256), float(temperature or 0), None if seed is None else int(seed), system or "")
