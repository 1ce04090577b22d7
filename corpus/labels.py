"""Exact labels of answers that an endpoint made: the token ids it says, looked at with the tokenizer of the base that
it serves. Ids that cannot be are counted and left out; such a row keeps its text, which is tokenised for training."""

import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from corpus.conversations import EXACT, Conversation
from corpus.replies import Reply
from models.chat import after_answer, render

ABSENT, RANGE, WORDS, PROMPT = "no ids said", "unknown ids", "ids of another text", "ids of another prompt"
"""Kinds of rows without exact labels."""
WHY = {
    RANGE: "the endpoint says token ids that the base's tokenizer does not have",
    WORDS: "the endpoint's token ids do not read as its answer",
    PROMPT: "the endpoint's prompt is not what the base's chat template makes of the messages",
}
"""What is said of those whose ids are wrong."""


@dataclass(frozen=True)
class ServedBase:
    """The base that an endpoint serves: what turns its chats into token ids and back."""

    tokenizer: Any
    eos_ids: Collection[int]
    base_sha256: str = ""
    tokenizer_sha256: str = ""
    turn: Any = field(default_factory=threading.Lock, repr=False, compare=False)
    """Threads that ask take turns at the tokenizer: not every one may be used by several at once."""

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        """The prompt's ids. Raises BadInput or Unsupported for messages that the template refuses."""
        with self.turn:
            return render(self.tokenizer, messages)

    def after_answer(self, messages: list[dict[str, str]], last: int) -> list[int]:
        """Ids between an answer that ended with token `last` and the next one: see `models.chat.after_answer`."""
        with self.turn:
            return after_answer(self.tokenizer, self.eos_ids, messages, last)

    def reads(self, ids: list[int]) -> str | None:
        """Their text; None where an id is not the tokenizer's."""
        with self.turn:
            known = all(0 <= i < len(self.tokenizer) for i in ids)
            return self.tokenizer.decode(ids, skip_special_tokens=True) if known else None


@dataclass
class Trail:
    """The ids of one conversation so far, prompts and answers, and half-open spans of the answers. `wrong` says why
    there are none."""

    base: ServedBase
    ids: list[int] = field(default_factory=list)
    spans: list[list[int]] = field(default_factory=list)
    wrong: str = ""

    def prompt(self, conversation: Conversation) -> list[int]:
        """What the base's template makes of everything said so far."""
        return self.base.render(conversation.messages())

    def continued(self, conversation: Conversation) -> list[int]:
        """As `prompt`, with the exact ids of earlier answers in place of their texts, where they are known."""
        if not self.ids:
            return self.prompt(conversation)
        return self.ids + self.base.after_answer(conversation.messages(), self.ids[-1])

    def take(self, prompt: list[int], reply: Reply) -> None:
        """An answer to `prompt`, which is ours. Where the prompt does not hold an earlier answer token for token (the
        template left its reasoning out, say), that answer is read here and not learned."""
        self.wrong = self.wrong or self._problem(prompt, reply)
        if self.wrong:
            self.ids, self.spans = [], []
            return
        assert reply.ids is not None
        self.spans = [span for span in self.spans if prompt[: span[1]] == self.ids[: span[1]]]
        self.spans.append([len(prompt), len(prompt) + len(reply.ids)])
        self.ids = prompt + reply.ids

    def to_json(self) -> dict[str, Any]:
        """What stands in the conversation's row."""
        return {"labels": self.wrong} if self.wrong else {"token_ids": self.ids, "loss_spans": self.spans}

    @property
    def kind(self) -> str:
        """How the labels are known."""
        return self.wrong or EXACT

    def _problem(self, prompt: list[int], reply: Reply) -> str:
        if reply.ids is None:
            return ABSENT
        if (text := self.base.reads(reply.ids)) is None:
            return RANGE
        if not _reads_as(text, reply):
            return WORDS
        same = reply.prompt_ids == prompt if reply.prompt_ids else reply.prompt_tokens in (0, len(prompt))
        return "" if same else PROMPT


def _reads_as(decoded: str, reply: Reply) -> bool:
    """Whether ids read as an answer. Servers take white space off its ends, half a character off its end, and the marks
    around its reasoning out."""
    said, text = _plain(decoded), _plain(reply.text)
    if not reply.reasoning:
        return said == text
    return said.endswith(text) and _plain(reply.reasoning) in said[: len(said) - len(text)]


def _plain(text: str) -> str:
    return text.strip().rstrip("\ufffd").strip()
