"""Form fields shared by several pages."""

import re
from typing import Any

import gradio as gr
from gradio.data_classes import ListFiles

from app.drafting import EXACT, TYPICAL, Drafting
from app.i18n import N_, t
from app.turns import TurnSampling
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
RULES = {N_("Exact (lossless)"): EXACT, N_("Typical (lossy)"): TYPICAL}
DRAFTING = 3  # number of fields of drafting in `settings_drawer`


def settings_drawer() -> tuple[list[gr.components.Component], list[gr.components.Component]]:
    """The button “Settings” and the drawer it opens (static/shell.js): fields of sampling, read by `sampling_of`, and
    of drafting, read by `drafting_of`."""
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
        rule = gr.Radio(
            [(t(name), rule) for name, rule in RULES.items()], value=EXACT, label=t("Acceptance"), elem_id="acceptance"
        )
        probabilities = gr.Checkbox(
            label=t("Record the base model's probabilities"),
            info=t("p of every drafted token, beside the draft's q. Steps are slower."),
            elem_id="probabilities",
        )
    return [limit, temperature, seed, system, top_p, top_k], [tree, rule, probabilities]


def turn_options_of(*values: Any) -> tuple[TurnSampling, Drafting]:
    """Sampling and drafting from the values of the drawer's fields. Raises BadInput."""
    return sampling_of(*values[:-DRAFTING]), drafting_of(*values[-DRAFTING:])


def drafting_of(tree: Any, rule: Any, probabilities: Any) -> Drafting:
    """Drafting from the values of its fields."""
    return Drafting(str(tree or ""), TYPICAL if rule == TYPICAL else EXACT, bool(probabilities))


def drafting_values(drafting: Drafting) -> list[Any]:
    """Values of the fields of drafting for `drafting`."""
    return [drafting.tree or "own", drafting.acceptance, drafting.probabilities]


def sampling_values(sampling: TurnSampling) -> list[Any]:
    """Values of the fields of sampling for `sampling`."""
    seed, most = "" if sampling.seed is None else str(sampling.seed), min(sampling.max_tokens, MAX_TOKENS)
    return [most, min(sampling.temperature, 2), seed, sampling.system, sampling.top_p, min(sampling.top_k, 200)]


def sampling_of(limit: Any, temperature: Any, seed: Any, system: str, top_p: Any = 1.0, top_k: Any = 0) -> TurnSampling:
    """Sampling from the values of its fields. Raises BadInput for a seed that is not a whole number or another value
    that is not a number."""
    text = str("" if seed is None else seed).strip()
    if text and not SEED.fullmatch(text):
        raise BadInput(f"Seed: expected a whole number, got {text[:40]!r}; leave it empty for a random seed.")
    seed, top_p = int(text) if text else None, top_p or 1
    try:
        return TurnSampling(
            int(limit or 256), float(temperature or 0), seed, system or "", float(top_p), int(top_k or 0)
        )
    except (TypeError, ValueError, OverflowError):
        raise BadInput("Sampling: max tokens, temperature, top-p and top-k must be numbers.") from None
