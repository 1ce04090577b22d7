"""The Playground page: chat with a base model and a draft, or a server; every token is marked by its origin."""

from typing import Any, NamedTuple

import gradio as gr
from sqlalchemy.orm import Session

from app import turns
from app.drafting import TurnOptions
from app.i18n import t
from app.views import targets
from app.widgets.elements import QUIET, block, hidden, notice, on_load, stop_button
from app.widgets.fields import BARE, DRAFTING, dropdown, option_values, options_of, settings_drawer
from app.widgets.text import tag
from models.methods import trees
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading
from tracking.names import server_of, split_model

PROMPT_POSITION = "(chat, ...rest) => [window.speculoos.chat.position(chat), ...rest]"
REMEMBER = "(base, draft) => { window.speculoos.chat?.picked(base, draft); }"  # writes the selected draft into the URL


class PlaygroundLink(NamedTuple):
    """Initial values of the page, from rows and the URL (`?chat=`, `?model=`, `?prompt=`, `?tree=`)."""

    base: str
    draft: str
    bases: list[tuple[str, str]]
    drafts: list[tuple[str, str]]
    why_off: str
    chat: str = ""
    prompt: str = ""
    options: TurnOptions = TurnOptions()


def opening(settings: Settings, query: dict[str, str]) -> PlaygroundLink:
    """Choices and values of the dropdowns: the model in the URL, otherwise the chat's last one or the best draft."""
    chat = turns.chat_of(settings, query.get("chat", ""))
    last = max(chat, key=lambda run: run.created_at, default=None)
    model = query.get("model") or (targets.value_of(last, "@") if last else "")
    with reading(settings) as session:
        bases = [*((name, name) for name in targets.base_names(session)), *targets.servers(settings)]
        base_name, draft = (model, "") if server_of(model) else split_model(model)
        names = [value for _, value in bases]
        base = base_name if base_name in names else next(iter(names), "")
        wanted = draft if model and base == base_name else None
        drafts, draft, off = drafts_of_base(session, base, wanted)
    options_in_url = TurnOptions(tree=query.get("tree", "")[: trees.MAX_CHARACTERS])
    options = TurnOptions.of(last.request) if last else options_in_url
    known_chat, prompt = query.get("chat", "") if chat else "", query.get("prompt", "")[:2000]
    return PlaygroundLink(base, draft, bases, drafts, off, known_chat, prompt, options)


def drafts_of_base(session: Session, base: str, wanted: str | None = None) -> tuple[list[tuple[str, str]], str, str]:
    """The drafts of a base model, the wanted or else the default one, and why speculation is off."""
    drafts = targets.draft_choices(session, base)
    is_known = wanted in [value for _, value in drafts]
    draft = wanted if wanted is not None and is_known else targets.default_draft(drafts)
    return drafts, draft, targets.why_off(session, base, draft)


def build(settings: Settings) -> None:
    with gr.Row(elem_classes="sp-toolbar"):
        chats = tag("button", t("Chats"), class_="sp-small-button", id="chats-open", aria_controls="chats")
        block(chats + tag("h1", t("Playground")), elem_id="head")
        base = dropdown([], label=t("Base model"), elem_id="base", filterable=True, min_width=160)
        draft = dropdown([], label=t("Draft"), elem_id="draft", filterable=True, min_width=160)
        views = {"class_": "sp-views", "role": "group", "aria_label": t("View of the responses")}
        block(tag("div", data_sp="views", **views), elem_id="views")
        options = settings_drawer()
    off = block(elem_id="why-off")
    block('<div data-sp="chat" class="sp-stage"></div>', elem_id="stage")
    with gr.Column(elem_classes="sp-composer"):
        problem = block(elem_id="problem")
        block('<div data-sp="editing"></div>', elem_id="editing")
        prompt = gr.Textbox(label=t("Prompt"), placeholder=t("Enter a prompt…"), max_lines=10, elem_id="prompt", **BARE)
        with gr.Row(elem_classes="sp-actions"):
            send = gr.Button(t("Send"), variant="primary", elem_id="send", size="md", scale=0, min_width=90)
            stop = stop_button("stop")
    with gr.Column(elem_id="chats", elem_classes="sp-drawer"):
        new = gr.Button(t("New chat"), elem_id="new-chat", size="md")
        block(tag("nav", data_sp="history", aria_label=t("Chats")), elem_id="history")
    chat_id = hidden("chat-id")
    wire_pickers(settings, base, draft, off, prompt, chat_id, options)

    def sent(position: str, base: str, draft: str, text: str, *fields: Any):
        try:
            return send_turn(settings, position, base, draft, text, options_of(*fields))
        except SpeculoosError as error:
            return (position or "").partition("/")[0], text, notice(str(error), "bad")

    inputs = [chat_id, base, draft, prompt, *options]
    step = gr.on([send.click, prompt.submit], sent, inputs, [chat_id, prompt, problem], js=PROMPT_POSITION, **QUIET)
    step.then(None, chat_id, None, js="(id) => { window.speculoos.chat.open(id); }", api_visibility="private")
    stop.click(None, js="() => { window.speculoos.chat.stop(); }", api_visibility="private")
    new.click(None, None, chat_id, js="() => { window.speculoos.chat.reset(); return ''; }", api_visibility="private")


def wire_pickers(settings, base, draft, off, prompt, chat_id, options) -> None:
    """Load choices when the page opens; the drafts follow the base model. A server has none to choose."""

    def load(request: gr.Request):
        start = opening(settings, dict(request.query_params))
        bases = gr.Dropdown(choices=start.bases, value=start.base or None)
        disabled = {"interactive": False} if server_of(start.base) else {}  # True would change controls once more
        drafts = gr.Dropdown(choices=start.drafts, value=start.draft, **disabled)
        values = option_values(start.options)
        if disabled:
            values[DRAFTING:] = [gr.update(value=value, **disabled) for value in values[DRAFTING:]]
        return bases, drafts, _off(start.why_off, start.base), start.prompt, start.chat, *values

    def picked(name: str, wanted: str | None = None):
        with reading(settings) as session:
            drafts, value, why = drafts_of_base(session, name, wanted)
        is_here = not server_of(name)
        draft = gr.Dropdown(choices=drafts, value=value, interactive=is_here)
        return draft, _off(why, name), *(gr.update(interactive=is_here) for _ in options[DRAFTING:])

    on_load(load, [base, draft, off, prompt, chat_id, *options])
    base.input(picked, base, [draft, off, *options[DRAFTING:]], **QUIET)
    draft.input(lambda *names: picked(*names)[1], [base, draft], off, **QUIET)
    for picker in (base, draft):
        picker.change(None, [base, draft], None, js=REMEMBER, api_visibility="private")


def send_turn(settings: Settings, position: str, base: str, draft: str, text: str, options: TurnOptions) -> tuple:
    """(chat id, prompt left in its field, error as HTML). `position` is the chat and, after a slash, the turn to follow
    ("" restarts the chat). Raises what turns.next_turn raises."""
    model, drafter = targets.target(base or "", draft or "")
    chat, follows, after = (position or "").partition("/")
    run, error = turns.next_turn(settings, chat, model, text, options, drafter, after=after if follows else None)
    return run.group_id, text if error else "", ""


def _off(why: str, base: str) -> str:
    return notice(why, "info" if server_of(base) else "warn") if why else ""
