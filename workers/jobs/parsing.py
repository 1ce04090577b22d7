"""Parses texts of forms and commands into values."""

import re
from collections.abc import Iterable
from typing import Any

from speculoos.errors import BadInput
from workers.jobs.words import value_of

PLAIN = re.compile(r"[0-9]{1,9}")
MOST_COUNTS = 12
MOST_BATCH, MOST_LAYERS = 64, 1000
"""Maximum values of a plan."""


def parse_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """`["lr=1e-3", "tree=[[0],[1]]", "name=x"]` as a dict: JSON where it parses, else text. Raises BadInput."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise BadInput(f"--set {pair}: expected key=value.")
        settings[key.strip()] = value_of(value.strip())
    return settings


def parse_numbers(label: str, text: str) -> tuple[float, ...]:
    """Comma-separated numbers from 0 to 5; an empty text gives none. Raises BadInput."""
    try:
        numbers = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise BadInput(f"{label}: expected numbers such as 0.0,0.3,0.7, got {text!r}.") from None
    if not all(0 <= number <= 5 for number in numbers):
        raise BadInput(f"{label}: expected numbers from 0 to 5, got {text!r}.")
    return numbers


def parse_counts(label: str, text: str, most: int) -> list[int]:
    """`1, 4, 16` as sorted, unique whole numbers from 1 to `most`. Raises BadInput."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > MOST_COUNTS or not all(PLAIN.fullmatch(part) and 1 <= int(part) <= most for part in parts):
        raise BadInput(f"{label}: expected comma-separated whole numbers from 1 to {most}, such as 1, 4, 16.")
    return sorted({int(part) for part in parts})
