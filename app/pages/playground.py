"""The Playground: chat with a base and a draft, every token shown by where it came from."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from app import turns
from app.drafting import LOOKUP, Drafting
from app.views import targets
from app.widgets.elements import QUIET, block, hidden, notice, on_load, page_header, stop_button
from app.widgets.fields import asked_of, drafting_fields, drafting_values, dropdown, sampling_fields
from models.methods import trees
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading
from tracking.names import split_model

PLACE = "(chat, ...rest) => [window.speculoos.chat.place(chat), ...rest]"
"""The question goes where the page shows it: after the last turn that is seen, or in place of one that is edited."""
REMEMBER = "(base, draft) => { window.speculoos.chat?.picked(base, draft); }"
"""The address says which draft was picked."""
LEAD = "Watch the draft run ahead: underlined tokens were drafted and accepted, boxed ones the model wrote itself."


@dataclass(frozen=True)
class PlaygroundLink:
    """What the page shows first, from rows and the address (`?chat=`, `?model=`, `?prompt=`, `?tree=`)."""

    base: str
    draft: str
    bases: list[str]
    drafts: list[tuple[str, str]]
    why_off: str
    chat: str = ""
    prompt: str = ""
    drafting: Drafting = turns.USUAL


def opening(settings: Settings, query: dict[str, str]) -> PlaygroundLink:
    """The pickers' choices and values: the address's model, the chat's last one, else the best draft."""
    chat = turns.chat_of(settings, query.get("chat", ""))
    last = max(chat, key=lambda run: run.created_at, default=None)
    model = query.get("model") or (_value(last) if last else "")
    with reading(settings) as session:
        bases = targets.base_names(session)
        base_name, draft = split_model(model)
        base = base_name if base_name in bases else (bases[0] if bases else "")
        drafts = targets.draft_choices(session, base)
        known = [value for _, value in drafts]
        draft = draft if model and base == base_name and draft in known else _first(known)
        off = targets.why_off(session, base, draft)
    drafting = Drafting.of(last.request) if last else Drafting(query.get("tree", "")[: trees.LONGEST])
    known_chat, prompt = query.get("chat", "") if chat else "", query.get("prompt", "")[:2000]
    return PlaygroundLink(base, draft, bases, drafts, off, known_chat, prompt, drafting)


def redraft(settings: Settings, base: str) -> tuple[list[tuple[str, str]], str, str]:
    """After another base was picked: its drafts, the first of them, and why speculation is off."""
    with reading(settings) as session:
        drafts = targets.draft_choices(session, base)
        draft = _first([value for _, value in drafts])
        return drafts, draft, targets.why_off(session, base, draft)


def build(settings: Settings) -> None:
    """Wire the page inside the current Blocks."""
    page_header("Playground", LEAD)
    block('<div data-sp="history" class="sp-history"></div>', elem_id="history")
    base, draft = pickers()
    off = block(elem_id="why-off")
    sampling, drafting = sampling_fields(), drafting_fields()
    block('<div data-sp="chat" class="sp-stage"></div>', elem_id="stage")
    prompt, send, stop, new, problem = composer()
    chat_id = hidden("chat-id")
    wire_pickers(settings, base, draft, off, prompt, chat_id, drafting)
    asked = [chat_id, base, draft, prompt, *sampling, *drafting]
    wire_sending(settings, asked, [chat_id, prompt, problem], send, prompt)
    stop.click(None, js="() => { window.speculoos.chat.stop(); }", api_visibility="private")
    new.click(None, None, chat_id, js="() => { window.speculoos.chat.reset(); return ''; }", api_visibility="private")


def pickers() -> tuple[gr.Dropdown, gr.Dropdown]:
    """Base model and draft."""
    with gr.Row(elem_classes="sp-pickers"):
        base = dropdown([], label="Base model", elem_id="base", filterable=True, min_width=200)
        draft = dropdown([], label="Draft", elem_id="draft", filterable=True, min_width=200)
    return base, draft


def composer() -> tuple[gr.Textbox, gr.Button, gr.Button, gr.Button, gr.HTML]:
    """The prompt, what can be done with it, and why it could not be sent."""
    with gr.Column(elem_classes="sp-composer"):
        problem = block(elem_id="problem")
        block('<div data-sp="editing"></div>', elem_id="editing")
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
            stop = stop_button("stop")
            new = gr.Button("New chat", elem_id="new-chat", size="md", scale=0, min_width=100)
    return prompt, send, stop, new, problem


def wire_pickers(settings, base, draft, off, prompt, chat_id, drafting) -> None:
    """Choices at opening; the drafts follow the base."""

    def load(request: gr.Request):
        start = opening(settings, dict(request.query_params))
        return (
            gr.Dropdown(choices=start.bases, value=start.base or None),
            gr.Dropdown(choices=start.drafts, value=start.draft),
            _off(start.why_off),
            start.prompt,
            start.chat,
            *drafting_values(start.drafting),
        )

    def picked(name: str):
        drafts, value, why = redraft(settings, name)
        return gr.Dropdown(choices=drafts, value=value), _off(why)

    def drafted(base_name: str, name: str):
        with reading(settings) as session:
            return _off(targets.why_off(session, base_name, name or ""))

    on_load(load, [base, draft, off, prompt, chat_id, *drafting])
    base.input(picked, base, [draft, off], **QUIET)
    draft.input(drafted, [base, draft], off, **QUIET)
    for picker in (base, draft):
        picker.change(None, [base, draft], None, js=REMEMBER, api_visibility="private")


def wire_sending(settings, inputs, outputs, send, prompt) -> None:
    """Send makes the run; the browser's script follows it."""

    def sent(place: str, base: str, draft: str, text: str, *fields: Any):
        try:
            return send_turn(settings, place, base, draft, text, *asked_of(*fields))
        except SpeculoosError as error:
            return (place or "").partition("/")[0], text, notice(str(error), "bad")

    step = gr.on([send.click, prompt.submit], sent, inputs, outputs, js=PLACE, **QUIET)
    step.then(None, outputs[0], None, js="(id) => { window.speculoos.chat.open(id); }", api_visibility="private")


def send_turn(
    settings: Settings,
    place: str,
    base: str,
    draft: str,
    text: str,
    sampling: turns.TurnSampling,
    drafting: Drafting = turns.USUAL,
) -> tuple:
    """(chat id, prompt left in its field, problem as HTML). `place` is the chat and, after a slash, the turn to follow
    ("" begins it anew). Raises what turns.next_turn raises."""
    target = targets.target(base or "", draft or "")
    chat, follows, after = (place or "").partition("/")
    run, refused = turns.next_turn(
        settings, chat, target.model, text, sampling, target.drafter, drafting, after=after if follows else None
    )
    return run.group_id, text if refused else "", ""


def _value(run: Any) -> str:
    """The pickers' value of a run: `base@draft`, with prompt lookup as a draft."""
    lookup = (run.request.get("speculation") or {}).get("drafter") == LOOKUP
    return f"{run.model}@{targets.LOOKUP_CHOICE}" if lookup else run.model


def _first(known: list[str]) -> str:
    """The best checkpoint, else none."""
    return known[0] if known and known[0] != targets.LOOKUP_CHOICE else targets.PLAIN


def _off(why: str) -> str:
    return notice(why, "warn") if why else ""
