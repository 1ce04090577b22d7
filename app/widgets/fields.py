"""Form fields that several pages share."""

import re
from typing import Any

import gradio as gr

from app.drafting import EXACT, TYPICAL, Drafting
from app.turns import TurnSampling
from app.widgets.elements import closed_accordion
from app.widgets.kept import PRESETS, keep, wire_presets
from speculoos.errors import BadInput

SEED = re.compile(r"-?[0-9]{1,18}")


def dropdown(*args: Any, **options: Any) -> gr.Dropdown:
    """A dropdown whose choices come from rows when a page is opened.

    Gradio checks a picked value against the choices of the session, which a restarted web process has forgotten: every
    open page would be refused. So the value is taken as it is, if it is text, and checked by who looks it up.
    """
    field = gr.Dropdown(*args, **options)
    field.preprocess = _texts  # type: ignore[method-assign]
    return field


def one_line(label: str, elem_id: str, **options: Any) -> gr.Textbox:
    """A box for a text of one line."""
    return gr.Textbox(label=label, elem_id=elem_id, max_lines=1, **options)


def whole_number(value: int, label: str, elem_id: str, **options: Any) -> gr.Number:
    """A box for a whole number."""
    return gr.Number(value, label=label, elem_id=elem_id, precision=0, **options)


def uploads(*args: Any, **options: Any) -> gr.File:
    """A box for several files of the visitor's own; its value is a list of paths. Gradio would leave an empty file
    behind for each of them at every event."""
    made = gr.File(*args, file_count="multiple", **options)
    made.preprocess = _paths  # type: ignore[method-assign]
    return made


def upload_box(*args: Any, **options: Any) -> gr.File:
    """A box for one file of the visitor's own; its value is a path, for the same reason."""
    made = gr.File(*args, type="filepath", **options)
    made.preprocess = _path  # type: ignore[method-assign]
    return made


def _path(payload: Any) -> str | None:
    return payload.path if payload else None


def _paths(payload: Any) -> list[str]:
    return [file.path for file in payload or ()]


def _texts(payload: Any) -> str | list[str] | None:
    if isinstance(payload, list):
        return [item for item in payload if isinstance(item, str)]
    return payload if isinstance(payload, str) else None


def sampling_fields() -> list[gr.components.Component]:
    """Tokens at most, temperature, seed, system prompt, top-p, top-k: folded, with presets, kept by the browser.
    `sampling_of` reads their values."""
    with closed_accordion("Sampling", elem_id="sampling"):
        preset = gr.Radio(list(PRESETS), value=next(iter(PRESETS)), label="Preset", elem_id="preset")
        with gr.Row():
            limit = gr.Slider(8, 2048, value=256, step=8, label="Tokens at most", elem_id="max-tokens")
            temperature = gr.Slider(0, 2, value=0, step=0.05, label="Temperature (0: greedy)", elem_id="temperature")
            top_p = gr.Slider(0.05, 1, value=1, step=0.05, label="Top-p (1: all tokens)", elem_id="top-p")
            top_k = gr.Slider(0, 200, value=0, step=1, label="Top-k (0: all tokens)", elem_id="top-k")
        with gr.Row():
            seed = one_line("Seed (empty: another each time)", "seed")  # a Number sends 0
            system = gr.Textbox(label="System prompt", lines=1, elem_id="system")
    made = [limit, temperature, seed, system, top_p, top_k]
    wire_presets(preset, [temperature, top_p, top_k])
    keep("sampling", [limit, temperature, top_p, top_k, system, preset])  # a kept seed would repeat every answer
    return made


TREE = (
    "own: as the checkpoint is tuned · chain 4 · tree 4x2x1 · depth 4, top_k 8, nodes 32 (EAGLE) · or paths as Medusa "
    "and TensorRT-LLM write them: [[0], [0, 0], [1]]"
)
RULES = [("Exact: the model's own words", EXACT), ("Typical (lossy): may differ from plain decoding", TYPICAL)]


DRAFTING = 3
"""Fields of `drafting_fields`."""


def drafting_fields() -> list[gr.components.Component]:
    """Tree, acceptance, probabilities: folded. `drafting_of` reads their values."""
    with closed_accordion("Tree and acceptance", elem_id="drafting"):
        tree = gr.Textbox("own", label="Tree", info=TREE, lines=1, max_lines=4, elem_id="tree")
        with gr.Row(equal_height=True):
            rule = gr.Radio(RULES, value=EXACT, label="Acceptance", elem_id="acceptance", min_width=260)
            probabilities = gr.Checkbox(
                label="Record the model's probabilities",
                info="p of every drafted token beside the draft's q, rejected ones too; takes some time a step.",
                elem_id="probabilities",
                min_width=260,
            )
    return [tree, rule, probabilities]


def drafting_of(tree: Any, rule: Any, probabilities: Any) -> Drafting:
    """What the fields say."""
    return Drafting(str(tree or ""), TYPICAL if rule == TYPICAL else EXACT, bool(probabilities))


def asked_of(*values: Any) -> tuple[TurnSampling, Drafting]:
    """What `sampling_fields` and, after them, `drafting_fields` say. Raises BadInput."""
    return sampling_of(*values[:-DRAFTING]), drafting_of(*values[-DRAFTING:])


def drafting_values(drafting: Drafting) -> list[Any]:
    """Values of the fields."""
    return [drafting.tree or "own", drafting.acceptance, drafting.probabilities]


def sampling_of(limit: Any, temperature: Any, seed: Any, system: str, top_p: Any = 1.0, top_k: Any = 0) -> TurnSampling:
    """What the fields say. Raises BadInput for a seed that is no whole number, and for what are no numbers."""
    whole = _seed(seed)
    try:
        narrow = {"top_p": float(top_p or 1.0), "top_k": int(top_k or 0)}
        return TurnSampling(int(limit or 256), float(temperature or 0), whole, system or "", **narrow)
    except (TypeError, ValueError, OverflowError):
        raise BadInput("Sampling: tokens, temperature, top-p and top-k are numbers.") from None


def _seed(given: Any) -> int | None:
    text = str("" if given is None else given).strip()
    if not text:
        return None
    if not SEED.fullmatch(text):
        raise BadInput(f"Seed: a whole number is needed, or nothing for another one each time; {text[:40]!r} is none.")
    return int(text)
