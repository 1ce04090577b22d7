"""Parse completions of OpenAI-compatible servers, and the token ids that some of them return:

| server | request | prompt ids | answer ids |
| --- | --- | --- | --- |
| vLLM, our own | `return_token_ids` | `prompt_token_ids`, of the choice in plain completions | choice: `token_ids` |
| SGLang | `return_token_ids` | choice: `prompt_token_ids` | choice: `token_ids` |
| SGLang before July 2026 | the second one below | choice: `prompt_token_ids` | [logprob, id, text]s in `meta_info` |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOKEN_ID_REQUESTS: tuple[dict[str, Any], ...] = (
    {"return_token_ids": True},
    {"return_meta_info": True, "return_prompt_token_ids": True, "logprobs": True},
)
"""Request fields for token ids, in the order in which they are tried."""
REASONING = ("reasoning_content", "reasoning")
MAX_TOKENS = 1 << 31
"""Larger token counts are ignored as invalid."""


@dataclass(frozen=True)
class Reply:
    """One answer. `ids` and `prompt_ids` are None if the server returns none; `tokens` and `prompt_tokens` are its
    counts, 0 if missing."""

    text: str
    finish: str
    reasoning: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    ids: list[int] | None = None
    prompt_ids: list[int] | None = None
    body: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The whole response."""
    seconds: float = field(default=0.0, compare=False)
    """From the request to the end of the response."""


def parse_reply(body: Any) -> Reply:
    """The first choice of a chat completion or plain completion. Raises ValueError without a choice, or for text that
    is not valid Unicode."""
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ValueError("an answer without choices")
    choice, usage = choices[0], body.get("usage")
    message = choice.get("message") if isinstance(choice.get("message"), dict) else {"content": choice.get("text")}
    usage_fields = usage if isinstance(usage, dict) else {}
    return Reply(
        text=_text(message.get("content")),
        finish=_text(choice.get("finish_reason")) or "stop",
        reasoning=next((text for key in REASONING if (text := _text(message.get(key)))), ""),
        tokens=_count(usage_fields.get("completion_tokens")),
        prompt_tokens=_count(usage_fields.get("prompt_tokens")),
        ids=_ids(choice.get("token_ids")) or _ids(_from_meta(choice)),
        prompt_ids=_ids(choice.get("prompt_token_ids")) or _ids(body.get("prompt_token_ids")),
    )


def _from_meta(choice: Mapping[str, Any]) -> Any:
    meta = choice.get("meta_info")
    entries = meta.get("output_token_logprobs") if isinstance(meta, dict) else None
    if not isinstance(entries, list) or not all(isinstance(each, list | tuple) and len(each) > 1 for each in entries):
        return None
    return [each[1] for each in entries]


def _ids(value: Any) -> list[int] | None:
    if not isinstance(value, list) or not value or not all(type(each) is int for each in value):
        return None
    return value


def _text(value: Any) -> str:
    """A text, "" for other values. Raises ValueError for an unpaired surrogate, which cannot be written to a file."""
    if not isinstance(value, str):
        return ""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("an answer that contains an unpaired surrogate") from None
    return value


def _count(value: Any) -> int:
    return value if type(value) is int and 0 < value < MAX_TOKENS else 0
