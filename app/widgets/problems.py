"""What goes wrong while an event is answered, as its page says it."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from app.widgets.elements import Tone, notice
from speculoos.errors import SpeculoosError


def sentence(error: SpeculoosError) -> str:
    """The error and what to change, as one line."""
    return " ".join(filter(None, (str(error), error.hint)))


def saying_errors(*others: Any, tone: Tone = "bad") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Of an event's function: an error becomes a notice in its first output, and the further ones get `others`."""

    def saying(answer: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(answer)
        def answered(*values: Any, **named: Any) -> Any:
            try:
                return answer(*values, **named)
            except SpeculoosError as error:
                said = notice(sentence(error), tone)
                return (said, *others) if others else said

        return answered

    return saying
