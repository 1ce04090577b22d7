"""Chat messages to token ids, through the base's own template. Knows tokenizers, not models."""

from collections.abc import Collection, Sequence
from typing import Any

from speculoos.errors import BadInput, Unsupported

ROLES = ("system", "user", "assistant")
SENTINEL = "\u2063answer\u2063"


def render(tokenizer: Any, messages: Sequence[dict[str, str]], system: str = "") -> list[int]:
    """Token ids of a conversation, with the marker that makes the model answer.

    `messages` are {"role", "content"}; a `system` text goes before them unless they begin with their own.
    A tokenizer without a chat template (a base model that was never taught to chat) takes one user turn as it is,
    with its begin-of-text token; more turns raise Unsupported. A template that refuses raises BadInput.
    """
    return to_ids(tokenizer, *to_text(tokenizer, messages, system))


def after_answer(tokenizer: Any, eos_ids: Collection[int], messages: Sequence[dict[str, str]], last: int) -> list[int]:
    """Ids of what the template writes after the last answer of `messages`, whose last token was `last`: its end mark
    (unless the answer ended with it), the next user turn and the invitation to answer. `messages` end with that turn;
    found by rendering with a mark in the answer's place."""
    marked = [dict(message) for message in messages]
    marked[-2]["content"] = SENTINEL
    text, templated = to_text(tokenizer, marked)
    ids = to_ids(tokenizer, text.split(SENTINEL)[-1], templated)
    return ids[1:] if ids and ids[0] == last and last in eos_ids else ids


def to_text(tokenizer: Any, messages: Sequence[dict[str, str]], system: str = "") -> tuple[str, bool]:
    """The first half of `render`: the conversation as one text, and whether a chat template wrote it."""
    messages = _checked(messages, system)
    if not getattr(tokenizer, "chat_template", None):
        return _only_turn(messages), False
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except TemplateError as error:
        raise BadInput(f"The model's chat template refuses these messages: {error}.") from None
    return text, True


def to_ids(tokenizer: Any, text: str, templated: bool) -> list[int]:
    """The second half of `render`. A template writes the special tokens itself."""
    return [int(i) for i in tokenizer(text, **({"add_special_tokens": False} if templated else {}))["input_ids"]]


def _only_turn(messages: list[dict[str, str]]) -> str:
    turns = [m for m in messages if m["content"]]
    if len(turns) != 1:
        raise Unsupported(
            "This model has no chat template, so it can only continue one text: "
            "send a single user message and no system prompt, or pick an instruct model."
        )
    return turns[0]["content"]


def _checked(messages: Sequence[dict[str, str]], system: str) -> list[dict[str, str]]:
    turns = []
    for number, message in enumerate(messages, 1):
        role, content = message.get("role"), message.get("content")
        if role not in ROLES or not isinstance(content, str):
            raise BadInput(f"Message {number}: needs a role ({', '.join(ROLES)}) and a text content.")
        turns.append({"role": role, "content": content})
    if not turns:
        raise BadInput("There is no message to answer.")
    if system and turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": system})
    return turns
