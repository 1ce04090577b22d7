"""The end of a generation: end-of-turn ids, stop texts, length, cancellation. Truncates the tokens of the last step."""

from collections.abc import Sequence
from typing import Any

from decoding.config import GenerateConfig
from decoding.step import EmittedToken


class Limits:
    """The limits of one generation. Only `cut` changes the state."""

    def __init__(self, config: GenerateConfig, eos_ids: frozenset[int], free_positions: int, tokenizer: Any):
        """`free_positions`: number of new tokens that fit the model."""
        self.eos_ids = eos_ids if config.eos_ids is None else config.eos_ids
        self.remaining = min(config.max_tokens, free_positions)
        self.should_stop = config.should_stop or (lambda: False)
        self.stops = StopTexts(tokenizer, config.stop) if config.stop else None

    def cut(self, tokens: Sequence[EmittedToken]) -> tuple[tuple[EmittedToken, ...], str | None]:
        """(tokens to emit, reason why the generation ends with them or None)."""
        for count, token in enumerate(tokens, 1):
            self.remaining -= 1
            if token.id in self.eos_ids or (self.stops and self.stops.ends_with(token.id)):
                return tuple(tokens[:count]), "stop"
            if self.remaining <= 0:
                return tuple(tokens[:count]), "length"
        return tuple(tokens), None


class StopTexts:
    """Finds stop texts in the response token by token. Decodes only the last tokens, so the cost of a token does not
    grow with the response."""

    def __init__(self, tokenizer: Any, texts: Sequence[str]):
        self.tokenizer, self.texts = tokenizer, tuple(texts)
        self.window = max(len(t.encode()) for t in texts) + 4  # a token has at least one byte
        self.ids: list[int] = []

    def ends_with(self, token: int) -> bool:
        """Add a token; True if the response now contains a stop text."""
        self.ids = [*self.ids[-self.window :], token]
        text = self.tokenizer.decode(self.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return any(stop in text for stop in self.texts)
