"""Errors of events as notices on the page."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from app.widgets.elements import Tone, notice
from speculoos.errors import SpeculoosError


def error_text(error: SpeculoosError) -> str:
    """The error message and its hint in one line."""
    return " ".join(filter(None, (str(error), error.hint)))


def show_errors(*others: Any, tone: Tone = "bad") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator of an event's function: a SpeculoosError becomes a notice in the first output; further outputs get
    `others`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except SpeculoosError as error:
                message = notice(error_text(error), tone)
                return (message, *others) if others else message

        return wrapper

    return decorate
