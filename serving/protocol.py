"""OpenAI's chat and text completions as far as this server speaks them: requests checked by pydantic, answers built as
plain dicts.

A parameter that would change the output and is not supported is refused, never ignored; those that only carry
bookkeeping (`user`, `metadata`, `store`, `service_tier`) are accepted and unused.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from models.methods import trees
from speculoos.errors import BadInput
from tracking.tables import new_id

DEFAULT_MAX_TOKENS = 256
DEFAULT_TEXT_TOKENS = 16
"""Of /v1/completions, as OpenAI and vLLM have it."""
MAX_MESSAGES = 512
MAX_TEXT = 1_000_000
MAX_STOPS = 4
MAX_OPTION = 256
MAX_DRAFT_TOKENS = trees.MOST_NODES
TEXT_OPTIONS = ("drafter", "acceptance")
MAX_VALUES = 50_000
"""Of one request, all its lists and objects together: a body of millions would hold the server for a minute."""
HALF = "half_character"
Role = Literal["system", "developer", "user", "assistant"]


class ContentPart(BaseModel):
    """A piece of a message's content; only text is understood."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn. `content` may be a string or a list of text parts."""

    model_config = ConfigDict(extra="forbid")
    role: Role
    content: str | list[ContentPart] | None = None
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


class GenerationRequest(BaseModel):
    """What both routes take. Ours are `speculation`, options of `decoding.drafters` such as drafter and depth, and
    `draft_tokens`, ids that the answer is expected to begin with."""

    model_config = ConfigDict(extra="forbid")
    INPUT: ClassVar[str]
    """The parameter that becomes the prompt."""

    model: Annotated[str, Field(min_length=1, max_length=420)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    speculation: dict[str, Any] | None = None
    draft_tokens: list[int] | None = None
    return_token_ids: bool = False

    n: Literal[1] | None = 1
    frequency_penalty: Literal[0] | None = 0
    presence_penalty: Literal[0] | None = 0

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None

    @model_validator(mode="before")
    @classmethod
    def _bounded_and_whole(cls, given: Any) -> Any:
        """Half a character is valid JSON and no text: no tokenizer, no database and no answer could take it."""
        if more_values_than(MAX_VALUES, given):
            raise PydanticCustomError("too_many", f"expected at most {MAX_VALUES:,} values in one request")
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

    @field_validator("draft_tokens", mode="before")
    @classmethod
    def _ids(cls, ids: Any) -> Any:
        """Which ids the model has is for the engine to say."""
        if ids is not None and not is_token_ids(ids):
            raise ValueError("expected a list of token ids")
        if ids is not None and len(ids) > MAX_DRAFT_TOKENS:
            raise ValueError(f"expected at most {MAX_DRAFT_TOKENS:,} token ids, got {len(ids):,}")
        return ids

    @field_validator("frequency_penalty", "presence_penalty", mode="before")
    @classmethod
    def _zero(cls, value: Any) -> Any:
        return int(value) if isinstance(value, float) and value == 0 else value

    @field_validator("speculation")
    @classmethod
    def _plain_options(cls, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """Which options there are is for decoding.drafters to say; here only that they are small and plain. A `tree`
        in words (models.methods.trees) becomes the options that it means."""
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

    def limit(self) -> int:
        """New tokens at most."""
        return self.max_tokens or DEFAULT_MAX_TOKENS


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    INPUT = "messages"
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Literal[False] | None = None
    response_format: dict[Literal["type"], Literal["text"]] | None = None

    @model_validator(mode="after")
    def _bounded(self) -> "ChatRequest":
        if sum(len(m.plain()["content"]) for m in self.messages) > MAX_TEXT:
            raise ValueError(f"messages: together longer than {MAX_TEXT:,} characters")
        if not any(m.plain()["content"].strip() for m in self.messages if m.role == "user"):
            raise ValueError("messages: expected at least one user message with text")
        return self

    def limit(self) -> int:
        """New tokens at most."""
        return self.max_completion_tokens or super().limit()

    def chat(self) -> list[dict[str, str]]:
        return [message.plain() for message in self.messages]


class CompletionRequest(GenerationRequest):
    """POST /v1/completions: a text, or its token ids, that the model continues. No chat template is used."""

    INPUT = "prompt"
    prompt: str | list[int]
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: None = None
    logprobs: None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_prompt(cls, prompt: Any) -> Any:
        """A list of one prompt, as some clients send it, is that prompt."""
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if not prompt or not (isinstance(prompt, str) or is_token_ids(prompt)):
            raise ValueError("expected one text or one list of token ids, not empty")
        if isinstance(prompt, str) and len(prompt) > MAX_TEXT:
            raise ValueError(f"longer than {MAX_TEXT:,} characters")
        return prompt

    def limit(self) -> int:
        """New tokens at most."""
        return self.max_tokens or DEFAULT_TEXT_TOKENS


def is_token_ids(value: Any) -> bool:
    """Whether `value` is a list of whole numbers from 0 on."""
    return isinstance(value, list) and all(type(token) is int and token >= 0 for token in value)


def more_values_than(limit: int, value: Any) -> bool:
    """Whether a JSON value holds more than `limit` values, all lists and objects together. Stops counting there."""
    left, count = [value], 0
    while left:
        node = left.pop()
        if isinstance(node, dict | list):
            count += len(node)
            if count > limit:
                return True
            left += node.values() if isinstance(node, dict) else node
    return False


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
    """Builds the JSON of one answer. `chat` says which of the two shapes. `prompt_ids` are there where token ids were
    asked for."""

    model: str
    created: int
    chat: bool = True
    prompt_ids: list[int] | None = None
    id: str = ""

    def __post_init__(self) -> None:
        self.id = self.id or f"{'chatcmpl' if self.chat else 'cmpl'}-{new_id()}"

    def chunk(self, record: dict[str, Any], finish: str | None = None, **extra: Any) -> dict[str, Any]:
        """The chunk of one step; `extra` holds the summary at the end."""
        tokens, first = record["tokens"], record["index"] == 0
        text = "".join(token["text"] for token in tokens)
        role = {"role": "assistant"} if first else {}
        said = {"delta": {**role, "content": text}} if self.chat else {"text": text}
        answer = self._answer(".chunk", said, finish, [token["id"] for token in tokens], first)
        return {**answer, "speculation": record, **extra}

    def usage_chunk(self, summary: dict[str, Any]) -> dict[str, Any]:
        """The chunk after the last token: no choices, usage and the summary of the whole run."""
        return {**self._head(".chunk"), "choices": [], **_totals(summary)}

    def whole(self, text: str, token_ids: list[int], summary: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request without `stream`."""
        message = {"role": "assistant", "content": text, "refusal": None}
        said = {"message": message} if self.chat else {"text": text}
        return {**self._answer("", said, summary["finish"], token_ids, True), **_totals(summary)}

    def _answer(
        self, suffix: str, said: dict[str, Any], finish: str | None, ids: list[int], first: bool
    ) -> dict[str, Any]:
        """With one choice; the prompt's ids stand in the `first` part, where vLLM has them."""
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
        answer = {**self._head(suffix), "choices": [choice]}
        if self.prompt_ids is not None:
            choice["token_ids"] = ids
            if first:
                (answer if self.chat else choice)["prompt_token_ids"] = self.prompt_ids
        return answer

    def _head(self, suffix: str) -> dict[str, Any]:
        kind = f"chat.completion{suffix}" if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _totals(summary: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's usage object beside the summary; `cached_tokens` of the prompt were still in the KV cache. The client's
    draft tokens are counted as OpenAI counts those of a predicted output."""
    usage = {
        "prompt_tokens": summary["prompt_tokens"],
        "completion_tokens": summary["tokens"],
        "total_tokens": summary["prompt_tokens"] + summary["tokens"],
        "prompt_tokens_details": {"cached_tokens": summary["cached_tokens"]},
    }
    if "draft_tokens" in summary:
        accepted = summary["accepted_draft_tokens"]
        rejected = summary["draft_tokens"] - accepted
        usage["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": rejected,
        }
    return {"usage": usage, "speculation_summary": summary}
