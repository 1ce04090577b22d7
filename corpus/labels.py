"""Exact labels of answers from an endpoint: the token ids it returns, verified with the tokenizer of the base that it
serves. Invalid ids are counted and dropped; such a row keeps its text, which is tokenized for training."""

import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from corpus.conversations import EXACT, Conversation
from corpus.replies import Reply
from models.chat import after_answer, render

ABSENT, RANGE, TEXT_MISMATCH, PROMPT = "no ids", "unknown ids", "ids of another text", "ids of another prompt"
"""Kinds of rows without exact labels."""
LABEL_PROBLEMS = {
    RANGE: "the endpoint sends token ids that the base's tokenizer does not have",
    TEXT_MISMATCH: "the endpoint's token ids do not decode to its answer",
    PROMPT: "the endpoint's prompt differs from the messages rendered with the base's chat template",
}
"""Messages for wrong ids."""


@dataclass(frozen=True)
class ServedBase:
    """The base model that an endpoint serves: converts chats to token ids and back."""

    tokenizer: Any
    eos_ids: Collection[int]
    base_sha256: str = ""
    tokenizer_sha256: str = ""
    lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)
    """Serializes access to the tokenizer, since not every tokenizer is thread-safe."""

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        """The prompt's ids. Raises BadInput or Unsupported for messages that the template rejects."""
        with self.lock:
            return render(self.tokenizer, messages)

    def after_answer(self, messages: list[dict[str, str]], last: int) -> list[int]:
        """Ids between an answer that ended with token `last` and the next answer: see `models.chat.after_answer`."""
        with self.lock:
            return after_answer(self.tokenizer, self.eos_ids, messages, last)

    def decode(self, ids: list[int]) -> str | None:
        """The decoded text; None when an id is out of range."""
        with self.lock:
            is_valid = all(0 <= i < len(self.tokenizer) for i in ids)
            return self.tokenizer.decode(ids, skip_special_tokens=True) if is_valid else None


@dataclass
class ConversationTokens:
    """Token ids of one conversation so far, and half-open spans of the answers; `problem`: why there are none."""

    base: ServedBase
    ids: list[int] = field(default_factory=list)
    spans: list[list[int]] = field(default_factory=list)
    problem: str = ""

    def prompt(self, conversation: Conversation) -> list[int]:
        """The conversation rendered with the base's chat template."""
        return self.base.render(conversation.messages())

    def continued(self, conversation: Conversation) -> list[int]:
        """Like `prompt`, but with the exact ids of earlier answers if known."""
        if not self.ids:
            return self.prompt(conversation)
        return self.ids + self.base.after_answer(conversation.messages(), self.ids[-1])

    def append(self, prompt: list[int], reply: Reply) -> None:
        """Add an answer to our `prompt`. Earlier answers that the prompt does not repeat token for token (e.g. because
        the template drops reasoning) are excluded from the loss."""
        self.problem = self.problem or self._problem(prompt, reply)
        if self.problem:
            self.ids, self.spans = [], []
            return
        assert reply.ids is not None
        self.spans = [span for span in self.spans if prompt[: span[1]] == self.ids[: span[1]]]
        self.spans.append([len(prompt), len(prompt) + len(reply.ids)])
        self.ids = prompt + reply.ids

    def to_json(self) -> dict[str, Any]:
        """The labels' fields in the conversation's row."""
        return {"labels": self.problem} if self.problem else {"token_ids": self.ids, "loss_spans": self.spans}

    @property
    def label_source(self) -> str:
        """The label source, or the kind of error."""
        return self.problem or EXACT

    def _problem(self, prompt: list[int], reply: Reply) -> str:
        if reply.ids is None:
            return ABSENT
        if (text := self.base.decode(reply.ids)) is None:
            return RANGE
        if not _matches_reply(text, reply):
            return TEXT_MISMATCH
        same = reply.prompt_ids == prompt if reply.prompt_ids else reply.prompt_tokens in (0, len(prompt))
        return "" if same else PROMPT


def _matches_reply(decoded: str, reply: Reply) -> bool:
    """Whether decoded ids match an answer. Servers strip white space, an incomplete character at the end, and the
    markers around reasoning."""
    decoded, text = _plain(decoded), _plain(reply.text)
    if not reply.reasoning:
        return decoded == text
    return decoded.endswith(text) and _plain(reply.reasoning) in decoded[: len(decoded) - len(text)]


def _plain(text: str) -> str:
    return text.strip().rstrip("\ufffd").strip()
