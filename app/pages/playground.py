"""The Playground: chat with a base and a draft, every token shown by where it came from."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from app import turns
from app.views import targets
from app.widgets.elements import QUIET, block, notice, on_load, page_header
from app.widgets.fields import dropdown, sampling_fields, sampling_of
from app.widgets.hidden import hidden
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading
from tracking.names import split_model

LEAD = "Watch the draft run ahead: underlined tokens were drafted and accepted, boxed ones the model wrote itself."


@dataclass(frozen=True)
class Opening:
    """What the page shows first, from rows and the address (`?chat=`, `?model=`, `?prompt=`)."""

    base: str
    draft: str
    bases: list[str]
    drafts: list[tuple[str, str]]
    why_off: str
    chat: str = ""
    prompt: str = ""


def opening(settings: Settings, query: dict[str, str]) -> Opening:
    """The pickers' choices and values: the chat's own model, the address's, else the newest draft of the first base."""
    chat = turns.chat_of(settings, query.get("chat", ""))
    model = _value(chat[-1]) if chat else query.get("model", "")
    with reading(settings) as session:
        bases = targets.base_names(session)
        base_name, draft = split_model(model)
        base = base_name if base_name in bases else (bases[0] if bases else "")
        drafts = targets.draft_choices(session, base)
        known = [value for _, value in drafts]
        draft = draft if model and base == base_name and draft in known else _first(known)
        off = targets.why_off(session, base, draft)
    return Opening(
        base, draft, bases, drafts, off, query.get("chat", "") if chat else "", query.get("prompt", "")[:2000]
    )


def redraft(settings: Settings, base: str) -> tuple[list[tuple[str, str]], str, str]:
    """After another base was picked: its drafts, the first of them, and why speculation is off."""
    with reading(settings) as session:
        drafts = targets.draft_choices(session, base)
        draft = _first([value for _, value in drafts])
        return drafts, draft, targets.why_off(session, base, draft)


def build(settings: Settings) -> None:
    """Wire the page inside the current Blocks."""
    page_header("Playground", LEAD)
    base, draft = pickers()
    off = block(elem_id="why-off")
    sampling = sampling_fields()
    block('<div data-sp="chat" class="sp-stage"></div>', elem_id="stage")
    problem = block(elem_id="problem")
    prompt, send, stop, new = composer()
    chat_id = hidden("chat-id")
    wire_pickers(settings, base, draft, off, prompt, chat_id)
    wire_sending(settings, [chat_id, base, draft, prompt, *sampling], [chat_id, prompt, problem], send, prompt)
    stop.click(None, js="() => { window.speculoos.chat.stop(); }", api_visibility="private")
    new.click(None, None, chat_id, js="() => { window.speculoos.chat.reset(); return ''; }", api_visibility="private")


def pickers() -> tuple[gr.Dropdown, gr.Dropdown]:
    """Base model and draft."""
    with gr.Row(elem_classes="sp-pickers"):
        base = dropdown([], label="Base model", elem_id="base", filterable=True, min_width=200)
        draft = dropdown([], label="Draft", elem_id="draft", filterable=True, min_width=200)
    return base, draft


def composer() -> tuple[gr.Textbox, gr.Button, gr.Button, gr.Button]:
    """The prompt and what can be done with it."""
    with gr.Column(elem_classes="sp-composer"):
        prompt = gr.Textbox(
            show_label=False,
            label="Prompt",
            placeholder="Ask something…   Enter sends, Shift+Enter begins a line, Esc stops",
            lines=1,
            max_lines=10,
            elem_id="prompt",
            container=False,
        )
        with gr.Row(elem_classes="sp-actions"):
            send = gr.Button("Send", variant="primary", elem_id="send", size="md", scale=0, min_width=90)
            stop = gr.Button("Stop", variant="stop", elem_id="stop", size="md", scale=0, min_width=80)
            new = gr.Button("New chat", elem_id="new-chat", size="md", scale=0, min_width=100)
    return prompt, send, stop, new


def wire_pickers(settings, base, draft, off, prompt, chat_id) -> None:
    """Choices at opening; the drafts follow the base."""

    def load(request: gr.Request):
        start = opening(settings, dict(request.query_params))
        return (
            gr.Dropdown(choices=start.bases, value=start.base or None),
            gr.Dropdown(choices=start.drafts, value=start.draft),
            _off(start.why_off),
            start.prompt,
            start.chat,
        )

    def picked(name: str):
        drafts, value, why = redraft(settings, name)
        return gr.Dropdown(choices=drafts, value=value), _off(why)

    def drafted(base_name: str, name: str):
        with reading(settings) as session:
            return _off(targets.why_off(session, base_name, name or ""))

    on_load(load, None, [base, draft, off, prompt, chat_id])
    base.input(picked, base, [draft, off], **QUIET)
    draft.input(drafted, [base, draft], off, **QUIET)


def wire_sending(settings, inputs, outputs, send, prompt) -> None:
    """Send makes the run; the browser's script follows it."""

    def sent(chat: str, base: str, draft: str, text: str, limit, temperature, seed, system: str):
        return send_turn(settings, chat, base, draft, text, sampling_of(limit, temperature, seed, system))

    step = gr.on([send.click, prompt.submit], sent, inputs, outputs, **QUIET)
    step.then(None, outputs[0], None, js="(id) => { window.speculoos.chat.open(id); }", api_visibility="private")


def send_turn(settings: Settings, chat: str, base: str, draft: str, text: str, sampling: turns.Sampling) -> tuple:
    """(chat id, prompt left in its field, problem as HTML)."""
    target = targets.target(base or "", draft or "")
    try:
        run, refused = turns.next_turn(settings, chat or "", target.model, text, sampling, target.drafter)
    except SpeculoosError as error:
        return chat or "", text, notice(str(error), "bad")
    return run.group_id, text if refused else "", ""


def _value(run: Any) -> str:
    """The pickers' value of a run: `base@draft`, with prompt lookup as a draft."""
    lookup = (run.request.get("speculation") or {}).get("drafter") == turns.LOOKUP
    return f"{run.model}@{targets.LOOKUP_CHOICE}" if lookup else run.model


def _first(known: list[str]) -> str:
    """The newest checkpoint, else none."""
    return known[0] if known and known[0] != targets.LOOKUP_CHOICE else targets.PLAIN


def _off(why: str) -> str:
    return notice(why, "warn") if why else ""
