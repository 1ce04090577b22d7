"""Steps to text: the text of every token, such that the texts concatenate to the whole response.

A character of several tokens is part of the text of its last token, whose record has the `origins` of all of them; the
earlier tokens have no text.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from decoding.step import Step

JOINER = "\u200d"
REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 8  # number of earlier tokens that are decoded again when a response is continued


class TextStream:
    """Converts the Steps of one generation, in order, to records with texts. `text` is the text so far."""

    def __init__(self, tokenizer: Any, stop: Sequence[str] = (), before: Sequence[int] = ()):
        """`stop`: stop texts as in GenerateConfig; the text ends before them. `before`: earlier tokens of the same
        response, needed because the text of a token may depend on the tokens before."""
        self.tokenizer = tokenizer
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        self.text = ""
        self._window = list(before[-CONTEXT_TOKENS:])  # tokens that affect the text of the next ones
        self._shown = len(self._decode(self._window).rstrip(REPLACEMENT))  # characters of the window already emitted
        self._origins: list[str] = []  # of the tokens of an incomplete character
        self._held = ""  # possible beginning of a stop text
        self._stopped = self._unfinished = False
        self._token_text = token_text_reader(tokenizer)

    def record(self, step: Step) -> dict[str, Any]:
        """`step.record()` with `text` for every token and `texts` for every drafted node. Mutates the stream."""
        record = step.record()
        for token in record["tokens"]:
            token["text"] = self._push(token["id"])
            self._origins.append(token["origin"])
            if not self._unfinished:
                if len(self._origins) > 1:
                    token["origins"] = self._origins
                self._origins = []
        if step.finish is not None and record["tokens"]:  # a cancelled step has no token for the held text
            record["tokens"][-1]["text"] += self._flush()
        self.text += "".join(t["text"] for t in record["tokens"])
        record["draft"]["texts"] = [self._token_text(i) for i in step.draft_record.tokens]
        return record

    def records(self, steps: Iterable[Step]) -> Iterable[dict[str, Any]]:
        return map(self.record, steps)

    def _push(self, token: int) -> str:
        self._window.append(token)
        text = self._decode(self._window)
        self._unfinished = _unfinished(text)
        if self._unfinished:
            return ""
        new_text, self._shown = text[self._shown :], len(text)
        self._shrink()
        return self._filter(new_text)

    def _shrink(self) -> None:
        """Drop tokens from the start of the window, but two complete ones, on which the next text may depend."""
        for cut in range(max(len(self._window) - 2, 0), 0, -1):
            head, rest = self._decode(self._window[:cut]), self._decode(self._window[cut:])
            if not _unfinished(head) and self._decode(self._window).endswith(rest):
                self._window, self._shown = self._window[cut:], len(rest)
                return

    def _flush(self) -> str:
        """The held text at the end of the response; an incomplete character becomes U+FFFD."""
        new_text = self._filter(self._decode(self._window)[self._shown :])
        rest, self._held = new_text + ("" if self._stopped else self._held), ""
        return rest

    def _filter(self, new_text: str) -> str:
        if not self.stop or self._stopped:
            return "" if self._stopped else new_text
        text = self._held + new_text
        starts = [start for stop in self.stop if (start := text.find(stop)) >= 0]
        if starts:
            self._stopped, self._held = True, ""
            return text[: min(starts)]
        held = max((_overlap(text, stop) for stop in self.stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _unfinished(text: str) -> bool:
    if text.endswith((REPLACEMENT, JOINER)):
        return True
    flags = len(text) - len(text.rstrip("".join(map(chr, range(0x1F1E6, 0x1F200)))))
    return flags % 2 == 1


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


def token_text_reader(tokenizer: Any) -> Any:
    """A cached function from a token id to its text, with the leading space; special tokens have their name."""

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    anchor = tokenizer.encode("a", add_special_tokens=False)
    start = decode(anchor)

    @lru_cache(maxsize=4096)
    def token_text(token: int) -> str:
        text = decode([*anchor, token])
        return text[len(start) :] if text.startswith(start) else decode([token])

    return token_text
