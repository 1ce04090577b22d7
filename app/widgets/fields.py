"""Form fields shared by several pages."""

import re
from typing import Any

import gradio as gr
from gradio.data_classes import ListFiles

from app.drafting import EXACT, TYPICAL, TurnOptions
from app.i18n import N_, t
from app.widgets.elements import block, section
from app.widgets.text import tag
from speculoos.errors import BadInput

BARE = {"container": False, "show_label": False}  # a field without a visible label
MAX_TOKENS = 2048  # of a response
SEED = re.compile(r"-?[0-9]{1,18}")


def dropdown(*args: Any, **options: Any) -> gr.Dropdown:
    """A dropdown whose choices come from rows when a page is opened.

    Gradio checks a value against the choices of the session. A restarted web process has lost these and would refuse
    every open page. So this accepts any text; the code that looks the value up checks it.
    """
    field = gr.Dropdown(*args, **options)
    field.preprocess = _texts  # type: ignore[method-assign]
    return field


def one_line(label: str, elem_id: str, **options: Any) -> gr.Textbox:
    """A field for one line of text."""
    return gr.Textbox(label=label, elem_id=elem_id, max_lines=1, **options)


def upload_box(*args: Any, **options: Any) -> gr.File:
    """A field to upload a file; its value is a path or, with `file_count="multiple"`, a list of paths. Gradio's own
    preprocessing would create an empty file for each of them at every event."""
    field = gr.File(*args, type="filepath", **options)
    field.preprocess = _paths  # type: ignore[method-assign]
    return field


def _paths(payload: Any) -> str | list[str] | None:
    return [file.path for file in payload] if isinstance(payload, ListFiles) else payload and payload.path


def _texts(payload: Any) -> str | list[str] | None:
    if isinstance(payload, list):
        return [item for item in payload if isinstance(item, str)]
    return payload if isinstance(payload, str) else None


TREE = N_(
    "own: the draft's default · chain 4 · tree 4x2x1 · depth 4, top_k 8, nodes 32 (EAGLE) · or paths as in "
    "Medusa and TensorRT-LLM: [[0], [0, 0], [1]]"
)


DRAFTING = 6
"""Index of the first of the drawer's fields about drafting; the fields before are about sampling."""


def settings_drawer() -> list[gr.components.Component]:
    """The button “Settings” and the drawer it opens (static/shell.js), whose fields `options_of` reads."""
    button = {"type": "button", "popovertarget": "options"}
    block(tag("button", t("Settings"), class_="sp-small-button", id="options-open", **button))
    with gr.Column(elem_id="options", elem_classes="sp-drawer"):
        block(tag("button", "×", class_="sp-close", aria_label=t("Close"), **button))
        section(t("Sampling"))
        with gr.Row():
            limit = gr.Slider(8, MAX_TOKENS, value=256, step=8, label=t("Max tokens"), elem_id="max-tokens")
            temperature = gr.Slider(0, 2, value=0, step=0.05, label=t("Temperature (0: greedy)"), elem_id="temperature")
            top_p = gr.Slider(0.05, 1, value=1, step=0.05, label=t("Top-p (1: all tokens)"), elem_id="top-p")
            top_k = gr.Slider(0, 200, value=0, step=1, label=t("Top-k (0: all tokens)"), elem_id="top-k")
            seed = one_line(t("Seed (empty: random)"), "seed")  # an empty Number sends 0
            system = gr.Textbox(label=t("System prompt"), lines=1, elem_id="system")
        section(t("Tree and acceptance"))
        tree = gr.Textbox("own", label=t("Tree"), info=t(TREE), lines=1, max_lines=4, elem_id="tree")
        block('<div data-sp="tree-field"></div>', elem_id="tree-picture")
        rules = [(t("Exact (lossless)"), EXACT), (t("Typical (lossy)"), TYPICAL)]
        rule = gr.Radio(rules, value=EXACT, label=t("Acceptance"), elem_id="acceptance")
        probabilities = gr.Checkbox(
            label=t("Record the base model's probabilities"),
            info=t("p of every drafted token, beside the draft's q. Steps are slower."),
            elem_id="probabilities",
        )
    return [limit, temperature, seed, system, top_p, top_k, tree, rule, probabilities]


def option_values(options: TurnOptions) -> list[Any]:
    """Values of the drawer's fields for `options`."""
    seed, most = "" if options.seed is None else str(options.seed), min(options.max_tokens, MAX_TOKENS)
    sampling = [most, min(options.temperature, 2), seed, options.system, options.top_p, min(options.top_k, 200)]
    return [*sampling, options.tree or "own", options.acceptance, options.probabilities]


def options_of(
    limit: Any,
    temperature: Any,
    seed: Any,
    system: str,
    top_p: Any = 1.0,
    top_k: Any = 0,
    tree: Any = "",
    rule: Any = EXACT,
    probabilities: Any = False,
) -> TurnOptions:
    """Options from the values of the drawer's fields. Raises BadInput for a seed that is not a whole number or another
    value that is not a number."""
    text = str("" if seed is None else seed).strip()
    if text and not SEED.fullmatch(text):
        raise BadInput(f"Seed: expected a whole number, got {text[:40]!r}; leave it empty for a random seed.")
    try:
        sampling = int(limit or 256), float(temperature or 0), int(text) if text else None, system or ""
        sampling += float(top_p or 1), int(top_k or 0)
    except (TypeError, ValueError, OverflowError):
        raise BadInput("Sampling: max tokens, temperature, top-p and top-k must be numbers.") from None
    return TurnOptions(*sampling, str(tree or ""), TYPICAL if rule == TYPICAL else EXACT, bool(probabilities))
