"""Steps to text: every token's own piece of the answer, such that the pieces concatenate to the whole text.

A character whose bytes several tokens hold comes out with the token that completes it, which says the `origins` of all
of them; the earlier ones have no text.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from decoding.step import Step

JOINER = "\u200d"
REPLACEMENT = "\ufffd"
BEFORE = 8
"""Earlier tokens of an answer that are looked at where it goes on."""


class TextStream:
    """Turns the Steps of one generation, in order, into records with texts. `text` is what has been said so far."""

    def __init__(self, tokenizer: Any, stop: Sequence[str] = (), before: Sequence[int] = ()):
        """`stop` texts (those of GenerateConfig) and what follows them are left out of the text. `before`: tokens of
        the same answer that were said earlier; some tokenizers glue words by context."""
        self.tokenizer = tokenizer
        self.stop = (stop,) if isinstance(stop, str) else tuple(stop)
        self.text = ""
        self._window = list(before[-BEFORE:])  # tokens that may still change how the next ones read
        self._shown = len(self._decode(self._window).rstrip(REPLACEMENT))  # characters of its text that are out already
        self._origins: list[str] = []  # of the tokens whose character is not whole yet
        self._held = ""  # may be the beginning of a stop text
        self._stopped = self._unfinished = False
        self._pieces = piece_reader(tokenizer)

    def record(self, step: Step) -> dict[str, Any]:
        """`step.record()` with `text` for every token and `texts` for every drafted node. Mutates the stream."""
        record = step.record()
        for token in record["tokens"]:
            token["text"] = self._push(token["id"])
            self._tell_origins(token)
        if step.finish is not None and record["tokens"]:  # a cancelled step has no token to carry what was held
            record["tokens"][-1]["text"] += self._flush()
        self.text += "".join(t["text"] for t in record["tokens"])
        record["draft"]["texts"] = [self._pieces(i) for i in step.drafted.tokens]
        return record

    def records(self, steps: Iterable[Step]) -> Iterable[dict[str, Any]]:
        """`record` of each step, as they come."""
        return map(self.record, steps)

    def _tell_origins(self, token: dict[str, Any]) -> None:
        """`origins` of all tokens that a character is made of, at the one that completes it."""
        self._origins.append(token["origin"])
        if self._unfinished:
            return
        if len(self._origins) > 1:
            token["origins"] = self._origins
        self._origins = []

    def _push(self, token: int) -> str:
        self._window.append(token)
        text = self._decode(self._window)
        self._unfinished = _unfinished(text)
        if self._unfinished:
            return ""
        piece, self._shown = text[self._shown :], len(text)
        self._shrink()
        return self._filter(piece)

    def _shrink(self) -> None:
        """Drop tokens from the window's front; two whole ones stay, because some tokenizers glue words by context."""
        for cut in range(max(len(self._window) - 2, 0), 0, -1):
            head, rest = self._decode(self._window[:cut]), self._decode(self._window[cut:])
            if not _unfinished(head) and self._decode(self._window).endswith(rest):
                self._window, self._shown = self._window[cut:], len(rest)
                return

    def _flush(self) -> str:
        """What was held back, at the end of the answer: an unfinished character reads as U+FFFD."""
        piece = self._filter(self._decode(self._window)[self._shown :])
        rest, self._held = piece + ("" if self._stopped else self._held), ""
        return rest

    def _filter(self, piece: str) -> str:
        """Take out stop texts: hold back what may begin one, drop all from the first on."""
        if not self.stop or self._stopped:
            return "" if self._stopped else piece
        text = self._held + piece
        places = [at for stop in self.stop if (at := text.find(stop)) >= 0]
        if places:
            self._stopped, self._held = True, ""
            return text[: min(places)]
        keep = max((_overlap(text, stop) for stop in self.stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _unfinished(text: str) -> bool:
    """Whether the end of `text` waits for more bytes or for the second half of a joined emoji or flag."""
    if text.endswith((REPLACEMENT, JOINER)):
        return True
    flags = len(text) - len(text.rstrip("".join(map(chr, range(0x1F1E6, 0x1F200)))))
    return flags % 2 == 1


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


def piece_reader(tokenizer: Any) -> Any:
    """A cached function from a token id to its own text, leading space kept, special tokens by name."""

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    anchor = tokenizer.encode("a", add_special_tokens=False)
    start = decode(anchor)

    @lru_cache(maxsize=4096)
    def piece(token: int) -> str:
        text = decode([*anchor, token])
        return text[len(start) :] if text.startswith(start) else decode([token])

    return piece
