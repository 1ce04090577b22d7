"""Validated access to the fields of a third party's config.json."""

from typing import Any

from speculoos.errors import BadInput

MAX_NUMBER = 1 << 31
REQUIRED: Any = object()


class Fields:
    """A config with its nested sections; the value of a key is taken from the first section that has it."""

    def __init__(self, name: str, *sections: Any):
        """`name` is the prefix of messages, such as `heads/config.json`. Sections that are not objects are ignored."""
        self.name = name
        self.sections = [section for section in sections if isinstance(section, dict)]

    def get(self, key: str, default: Any = None) -> Any:
        """The first value that is not null."""
        return next((s[key] for s in self.sections if s.get(key) is not None), default)

    def number(self, key: str, default: Any = REQUIRED) -> int:
        """A whole number of at least 1. Raises BadInput for another value, or if a required number is missing."""
        value = self.get(key, default)
        if value is REQUIRED:
            raise BadInput(f"{self.name}: {key} is missing; add the value that the draft was trained with.")
        if value is default:
            return default
        if type(value) is not int or not 0 < value < MAX_NUMBER:
            raise BadInput(f"{self.name}: {key}: expected a whole number above 0, got {str(value)[:60]!r}.")
        return value

    def real(self, key: str, default: float) -> float:
        """A number above 0. Raises BadInput for another value."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise BadInput(f"{self.name}: {key}: expected a number above 0, got {str(value)[:60]!r}.")
        return float(value)

    def flag(self, key: str) -> bool:
        """true or false; false if it is missing. Raises BadInput for another value."""
        value = self.get(key, False)
        if not isinstance(value, bool):
            raise BadInput(f"{self.name}: {key}: expected true or false, got {str(value)[:60]!r}.")
        return value

    def text(self, key: str) -> str:
        """A string; "" if it is missing or not a string."""
        value = self.get(key, "")
        return value if isinstance(value, str) else ""
