"""The supported part of OpenAI's chat and text completions API: pydantic models for requests, dicts for responses.

An unsupported parameter that would change the output is rejected, never ignored. Bookkeeping parameters (`user`,
`metadata`, `store`, `service_tier`) are accepted and ignored.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from models.methods import trees
from speculoos.errors import BadInput
from tracking.tables import new_id

MAX_MESSAGES = 512
MAX_TEXT = 1_000_000
MAX_STOPS = 4
MAX_OPTION = 256
MAX_DRAFT_TOKENS = trees.MAX_TREE_NODES
TEXT_OPTIONS = ("drafter", "acceptance")
MAX_VALUES = 50_000
"""Values of one request, counted over all its lists and objects; millions would block the server for a minute."""
Role = Literal["system", "developer", "user", "assistant"]


class ContentPart(BaseModel):
    """One part of a message's content; only text is supported."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid")
    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: None = None

    def plain(self) -> dict[str, str]:
        """{"role", "content"}, the input of chat templates."""
        role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, list):
            return {"role": role, "content": "".join(part.text for part in self.content)}
        return {"role": role, "content": self.content or ""}


class StreamOptions(BaseModel):
    """Options of a streamed response."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    include_obfuscation: bool = False


class GenerationRequest(BaseModel):
    """Parameters of both routes. Our extensions are `speculation` (options of `decoding.drafters`), `draft_tokens`
    (which the response is expected to start with) and `return_token_ids`."""

    model_config = ConfigDict(extra="forbid")
    INPUT: ClassVar[str]  # name of the parameter that holds the prompt
    DEFAULT_TOKENS: ClassVar[int] = 256

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
    frequency_penalty: Annotated[float, Field(ge=0, le=0, strict=True, allow_inf_nan=False)] | None = 0
    presence_penalty: Annotated[float, Field(ge=0, le=0, strict=True, allow_inf_nan=False)] | None = 0

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None

    @model_validator(mode="before")
    @classmethod
    def _check_body(cls, body: Any) -> Any:
        """Lone surrogates are valid JSON, but tokenizers, databases and responses cannot encode them."""
        if more_values_than(MAX_VALUES, body):
            raise PydanticCustomError("too_many", f"expected at most {MAX_VALUES:,} values in one request")
        for field, value in body.items() if isinstance(body, dict) else ():
            if not _can_be_encoded([field, value]):
                message = "contains an unpaired surrogate"
                raise PydanticCustomError("half_character", message, {"field": ascii(field)[1:-1]})
        return body

    @field_validator("stop")
    @classmethod
    def _stops(cls, stop: str | list[str] | None) -> list[str]:
        """Normalize None, a string or a list to a list. An empty stop string would match at once."""
        stops = [stop] if isinstance(stop, str) else list(stop or [])
        if len(stops) > MAX_STOPS or any(not s for s in stops):
            raise ValueError(f"expected up to {MAX_STOPS} strings, none of them empty")
        return stops

    @field_validator("draft_tokens", mode="before")
    @classmethod
    def _ids(cls, ids: Any) -> Any:
        if ids is not None and not is_token_ids(ids):
            raise ValueError("expected a list of token ids")
        if ids is not None and len(ids) > MAX_DRAFT_TOKENS:
            raise ValueError(f"expected at most {MAX_DRAFT_TOKENS:,} token ids, got {len(ids):,}")
        return ids

    @field_validator("speculation")
    @classmethod
    def _check_options(cls, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """Check types and bounds (decoding.drafters checks the names), and parse a `tree` given as text."""
        try:
            options = trees.read_options(options) if options else options
            if options and options.get("tree") is not None:
                trees.check(options["tree"])
        except BadInput as error:
            raise ValueError(str(error)) from None
        for name, value in (options or {}).items():
            if name == "tree":
                continue
            if name in TEXT_OPTIONS:
                if not isinstance(value, str | None):
                    raise ValueError(f"{name!r} must be a text")
            elif value is not None and not (isinstance(value, int | float) and 0 <= value <= MAX_OPTION):
                hint = "; a draft is chosen by the model, as in base@draft" if isinstance(value, str) else ""
                raise ValueError(f"{name!r} must be true, false or a number from 0 to {MAX_OPTION}{hint}")
        return options

    def limit(self) -> int:
        """Maximum number of new tokens."""
        return self.max_tokens or self.DEFAULT_TOKENS


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    INPUT = "messages"
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: Literal[False] | None = None
    response_format: dict[Literal["type"], Literal["text"]] | None = None

    @model_validator(mode="after")
    def _check_messages(self) -> "ChatRequest":
        if sum(len(m.plain()["content"]) for m in self.messages) > MAX_TEXT:
            raise ValueError(f"messages: together longer than {MAX_TEXT:,} characters")
        if not any(m.plain()["content"].strip() for m in self.messages if m.role == "user"):
            raise ValueError("messages: expected at least one user message with text")
        return self

    def limit(self) -> int:
        return self.max_completion_tokens or super().limit()

    def chat(self) -> list[dict[str, str]]:
        return [message.plain() for message in self.messages]


class CompletionRequest(GenerationRequest):
    """POST /v1/completions: the model continues a text or a list of token ids, without a chat template."""

    INPUT = "prompt"
    DEFAULT_TOKENS = 16  # as in OpenAI and vLLM
    prompt: str | list[int]
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: None = None
    logprobs: None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_prompt(cls, prompt: Any) -> Any:
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if not prompt or not (isinstance(prompt, str) or is_token_ids(prompt)):
            raise ValueError("expected one text or one list of token ids, not empty")
        if isinstance(prompt, str) and len(prompt) > MAX_TEXT:
            raise ValueError(f"longer than {MAX_TEXT:,} characters")
        return prompt


def is_token_ids(value: Any) -> bool:
    """Whether `value` is a list of integers ≥ 0."""
    return isinstance(value, list) and all(type(token) is int and token >= 0 for token in value)


def more_values_than(limit: int, value: Any) -> bool:
    """Whether all lists and objects of a JSON value together hold more than `limit` values. Stops counting there."""
    stack, count = [value], 0
    while stack:
        node = stack.pop()
        if isinstance(node, dict | list):
            count += len(node)
            if count > limit:
                return True
            stack += node.values() if isinstance(node, dict) else node
    return False


def _can_be_encoded(value: Any) -> bool:
    try:
        return bool(json.dumps(value, ensure_ascii=False).encode())
    except (UnicodeEncodeError, RecursionError):
        return False


@dataclass
class Completion:
    """Builds the JSON of one response. `prompt_ids`: if token ids were requested; `with_usage`: chunks have `usage`."""

    model: str
    created: int
    chat: bool = True
    prompt_ids: list[int] | None = None
    with_usage: bool = False

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{new_id()}"

    def chunk(self, record: dict[str, Any], finish: str | None = None, **extra: Any) -> dict[str, Any]:
        """The chunk of one step; the last one has the summary in `extra`."""
        tokens, first = record["tokens"], record["index"] == 0
        text = "".join(token["text"] for token in tokens)
        role = {"role": "assistant"} if first else {}
        content = {"delta": {**role, "content": text}} if self.chat else {"text": text}
        response = self._response(".chunk", content, finish, [token["id"] for token in tokens], first)
        usage = {"usage": None} if self.with_usage else {}
        return {**response, "speculation": record, **usage, **extra}

    def usage_chunk(self, summary: dict[str, Any]) -> dict[str, Any]:
        """The chunk after the last token: no choices, but usage and summary."""
        return {**self._head(".chunk"), "choices": [], **_totals(summary)}

    def complete_response(self, text: str, token_ids: list[int], summary: dict[str, Any]) -> dict[str, Any]:
        """The response to a request without `stream`."""
        message = {"role": "assistant", "content": text, "refusal": None}
        content = {"message": message} if self.chat else {"text": text}
        return {**self._response("", content, summary["finish"], token_ids, True), **_totals(summary)}

    def _response(
        self, suffix: str, content: dict[str, Any], finish: str | None, ids: list[int], first: bool
    ) -> dict[str, Any]:
        """A response with one choice. As in vLLM, the `first` part has the prompt's token ids."""
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        response = {**self._head(suffix), "choices": [choice]}
        if self.prompt_ids is not None:
            choice["token_ids"] = ids
            if first:
                (response if self.chat else choice)["prompt_token_ids"] = self.prompt_ids
        return response

    def _head(self, suffix: str) -> dict[str, Any]:
        kind = f"chat.completion{suffix}" if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _totals(summary: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's usage object and the summary; draft tokens are counted like OpenAI's predicted outputs."""
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
