"""When a generation ends: end-of-turn ids, stop texts, length, cancellation. Cuts a step's tokens where it does."""

from collections.abc import Sequence
from typing import Any

from decoding.config import GenerateConfig
from decoding.step import EmittedToken


class Limits:
    """Counts and cuts one generation. Mutated by `cut` only."""

    def __init__(self, config: GenerateConfig, eos_ids: frozenset[int], room: int, tokenizer: Any):
        """`room` is how many new tokens still fit the model."""
        self.eos_ids = eos_ids if config.eos_ids is None else config.eos_ids
        self.left = min(config.max_tokens, room)
        self.should_stop = config.should_stop or (lambda: False)
        self.stops = StopTexts(tokenizer, config.stop) if config.stop else None

    def cut(self, tokens: Sequence[EmittedToken]) -> tuple[tuple[EmittedToken, ...], str | None]:
        """(the tokens that may be emitted, why generation ends with them or None)."""
        for count, token in enumerate(tokens, 1):
            self.left -= 1
            if token.id in self.eos_ids or (self.stops and self.stops.ends_with(token.id)):
                return tuple(tokens[:count]), "stop"
            if self.left <= 0:
                return tuple(tokens[:count]), "length"
        return tuple(tokens), None


class StopTexts:
    """Finds stop texts in the answer as tokens come. Looks at the last tokens only, so long answers stay cheap."""

    def __init__(self, tokenizer: Any, texts: Sequence[str]):
        self.tokenizer, self.texts = tokenizer, tuple(texts)
        self.window = max(len(t.encode()) for t in texts) + 4  # a token holds at least one byte
        self.ids: list[int] = []

    def ends_with(self, token: int) -> bool:
        """Add a token; True once the answer contains a stop text."""
        self.ids = [*self.ids[-self.window :], token]
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return any(stop in text for stop in self.texts)
