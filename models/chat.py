"""Chat messages to token ids, with the chat template of the base model."""

from collections.abc import Collection, Sequence
from typing import Any

from speculoos.errors import BadInput, Unsupported

ROLES = ("system", "user", "assistant")
SENTINEL = "\u2063answer\u2063"


def render(tokenizer: Any, messages: Sequence[dict[str, str]], system: str = "") -> list[int]:
    """Token ids of a conversation, with the generation prompt. `messages` are {"role", "content"}; `system` is
    prepended unless they begin with a system message. A tokenizer without a chat template (a model that is not
    chat-tuned) takes a single user message as plain text, with its begin-of-text token; more messages raise
    Unsupported. Raises BadInput when the template raises an error."""
    return to_ids(tokenizer, *to_text(tokenizer, messages, system))


def after_answer(tokenizer: Any, eos_ids: Collection[int], messages: Sequence[dict[str, str]], last: int) -> list[int]:
    """Ids that the template adds after the last response in `messages`: its end token (unless `last`, the last token of
    the response, is that), the next user message (the last of `messages`) and the generation prompt. Computed by
    rendering with a sentinel in place of the response."""
    replaced = [dict(message) for message in messages]
    replaced[-2]["content"] = SENTINEL
    text, templated = to_text(tokenizer, replaced)
    ids = to_ids(tokenizer, text.split(SENTINEL)[-1], templated)
    return ids[1:] if ids and ids[0] == last and last in eos_ids else ids


def to_text(tokenizer: Any, messages: Sequence[dict[str, str]], system: str = "") -> tuple[str, bool]:
    """The first half of `render`: the conversation as text, and whether a chat template produced it."""
    messages = _checked(messages, system)
    if not getattr(tokenizer, "chat_template", None):
        turns = [message["content"] for message in messages if message["content"]]
        if len(turns) != 1:
            raise Unsupported(
                "This model has no chat template, so it can only continue one text: "
                "send a single user message and no system prompt, or pick an instruct model."
            )
        return turns[0], False
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except TemplateError as error:
        raise BadInput(f"The model's chat template refuses these messages: {error}.") from None
    return text, True


def to_ids(tokenizer: Any, text: str, templated: bool) -> list[int]:
    """The second half of `render`. A template already adds the special tokens."""
    return [int(i) for i in tokenizer(text, **({"add_special_tokens": False} if templated else {}))["input_ids"]]


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
