"""OpenAI's chat protocol as far as this server speaks it: requests checked by pydantic, answers built as plain dicts.

A parameter that would change the output and is not supported is refused, never ignored; those that only carry
bookkeeping (`user`, `metadata`, `store`, `service_tier`) are accepted and unused.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from methods import trees
from speculoos.errors import BadInput
from tracking.tables import new_id

DEFAULT_MAX_TOKENS = 256
MAX_MESSAGES = 512
MAX_TEXT = 1_000_000
MAX_STOPS = 4
MAX_OPTION = 256
TEXT_OPTIONS = ("drafter", "acceptance")
HALF = "half_character"
Role = Literal["system", "developer", "user", "assistant"]


class Part(BaseModel):
    """A piece of a message's content; only text is understood."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn. `content` may be a string or a list of text parts."""

    model_config = ConfigDict(extra="forbid")
    role: Role
    content: str | list[Part] | None = None
    name: str | None = None
    refusal: None = None

    def plain(self) -> dict[str, str]:
        """{"role", "content"} as chat templates take it."""
        role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, list):
            return {"role": role, "content": "".join(part.text for part in self.content)}
        return {"role": role, "content": self.content or ""}


class StreamOptions(BaseModel):
    """What a stream adds at its end."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    include_obfuscation: bool = False


class ChatRequest(BaseModel):
    """POST /v1/chat/completions. `speculation` is ours: options of `decoding.drafters`, such as drafter and depth."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1, max_length=420)]
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    speculation: dict[str, Any] | None = None
    return_token_ids: bool = False

    n: Literal[1] | None = 1
    frequency_penalty: Literal[0] | None = 0
    presence_penalty: Literal[0] | None = 0
    logprobs: Literal[False] | None = None
    response_format: dict[Literal["type"], Literal["text"]] | None = None

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None

    @model_validator(mode="before")
    @classmethod
    def _whole_characters(cls, given: Any) -> Any:
        """Half a character is valid JSON and no text: no tokenizer, no database and no answer could take it."""
        if place := half_character(given):
            raise PydanticCustomError(HALF, "holds half of a character (a lone surrogate)", {"field": place})
        return given

    @field_validator("stop")
    @classmethod
    def _stops(cls, stop: str | list[str] | None) -> list[str]:
        """None, a string or a list as a list. Empty strings would stop everything at once."""
        stops = [stop] if isinstance(stop, str) else list(stop or [])
        if len(stops) > MAX_STOPS or any(not s for s in stops):
            raise ValueError(f"expected up to {MAX_STOPS} strings, none of them empty")
        return stops

    @field_validator("frequency_penalty", "presence_penalty", mode="before")
    @classmethod
    def _zero(cls, value: Any) -> Any:
        return int(value) if isinstance(value, float) and value == 0 else value

    @field_validator("speculation")
    @classmethod
    def _plain_options(cls, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """Which options there are is for decoding.drafters to say; here only that they are small and plain. A `tree`
        in words (methods.trees) becomes the options that it means."""
        options = _read_tree(options)
        for name, value in (options or {}).items():
            if name == "tree":
                _check_tree(value)
            elif name in TEXT_OPTIONS:
                if not isinstance(value, str | None):
                    raise ValueError(f"{name!r} must be a text")
            elif value is not None and not (isinstance(value, int | float) and 0 <= value <= MAX_OPTION):
                hint = "; a draft is chosen by the model, as in base@checkpoint" if isinstance(value, str) else ""
                raise ValueError(f"{name!r} must be true, false or a number from 0 to {MAX_OPTION}{hint}")
        return options

    @model_validator(mode="after")
    def _bounded(self) -> "ChatRequest":
        if sum(len(m.plain()["content"]) for m in self.messages) > MAX_TEXT:
            raise ValueError(f"messages: together longer than {MAX_TEXT:,} characters")
        if not any(m.plain()["content"].strip() for m in self.messages if m.role == "user"):
            raise ValueError("messages: expected at least one user message with text")
        return self

    def limit(self) -> int:
        """New tokens at most."""
        return self.max_completion_tokens or self.max_tokens or DEFAULT_MAX_TOKENS

    def chat(self) -> list[dict[str, str]]:
        return [message.plain() for message in self.messages]


def half_character(value: Any) -> str:
    """Where in a JSON value the first lone surrogate is (`messages.0.content`); "" when every text is whole."""
    left = [("", value)]
    while left:
        place, node = left.pop()
        if isinstance(node, str):
            if not _is_text(node):
                return place or "body"
        elif isinstance(node, dict):
            if broken := next((key for key in node if not _is_text(key)), None):
                return f"{place}.{ascii(broken)}".lstrip(".")
            left += reversed([(f"{place}.{key}".lstrip("."), item) for key, item in node.items()])
        elif isinstance(node, list | tuple):
            left += reversed([(f"{place}.{number}".lstrip("."), item) for number, item in enumerate(node)])
    return ""


def _is_text(text: Any) -> bool:
    try:
        return not isinstance(text, str) or text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _read_tree(options: dict[str, Any] | None) -> dict[str, Any] | None:
    """The options with a tree in words, such as "chain 4", read."""
    try:
        return trees.read_options(options) if options else options
    except BadInput as error:
        raise ValueError(str(error)) from None


def _check_tree(value: Any) -> None:
    if value is None:
        return
    try:
        trees.check(value)
    except BadInput as error:
        raise ValueError(str(error)) from None


@dataclass
class Completion:
    """Ids that every chunk of one answer shares, and the builders of its JSON."""

    model: str
    created: int
    id: str = field(default_factory=lambda: f"chatcmpl-{new_id()}")

    def chunk(
        self, delta: dict[str, Any], finish: str | None = None, ids: dict[str, Any] | None = None, **extra: Any
    ) -> dict[str, Any]:
        """One `chat.completion.chunk`; `ids` are the choice's token ids, `extra` holds `speculation`."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **(ids or {})}
        return {**self._head("chat.completion.chunk"), "choices": [choice], **extra}

    def usage_chunk(self, summary: dict[str, Any]) -> dict[str, Any]:
        """The chunk after the last token: no choices, usage and the summary of the whole run."""
        return {**self._head("chat.completion.chunk"), "choices": [], **_totals(summary)}

    def whole(
        self, text: str, summary: dict[str, Any], ids: dict[str, Any] | None = None, **extra: Any
    ) -> dict[str, Any]:
        """The answer to a request without `stream`; `ids` are the choice's token ids."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": summary["finish"], **(ids or {})}
        return {**self._head("chat.completion"), "choices": [choice], **_totals(summary), **extra}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _totals(summary: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's usage object beside the summary; `cached_tokens` of the prompt were still in the KV cache."""
    usage = {
        "prompt_tokens": summary["prompt_tokens"],
        "completion_tokens": summary["tokens"],
        "total_tokens": summary["prompt_tokens"] + summary["tokens"],
        "prompt_tokens_details": {"cached_tokens": summary["cached_tokens"]},
    }
    return {"usage": usage, "speculation_summary": summary}
