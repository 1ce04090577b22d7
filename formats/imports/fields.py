"""Fields of somebody else's config.json, read with a sentence for each that is not what it should be."""

from typing import Any

from speculoos.errors import BadInput

MOST = 1 << 31
REQUIRED: Any = object()


class Fields:
    """A config with the sections in which projects nest further keys; the first that has a key counts."""

    def __init__(self, where: str, *sections: Any):
        """`where` begins messages, such as `heads/config.json`. Sections that are no objects are left out."""
        self.where = where
        self.sections = [section for section in sections if isinstance(section, dict)]

    def get(self, key: str, default: Any = None) -> Any:
        """The first value that is not null."""
        return next((s[key] for s in self.sections if s.get(key) is not None), default)

    def number(self, key: str, default: Any = REQUIRED) -> int:
        """A whole number of at least 1. Raises BadInput for anything else, and where a required one is missing."""
        value = self.get(key, default)
        if value is REQUIRED:
            raise BadInput(f"{self.where}: {key} is missing; add it, as the draft was trained with.")
        if value is default:
            return default
        if type(value) is not int or not 0 < value < MOST:
            raise BadInput(f"{self.where}: {key}: expected a whole number above 0, got {str(value)[:60]!r}.")
        return value

    def real(self, key: str, default: float) -> float:
        """A number above 0."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise BadInput(f"{self.where}: {key}: expected a number above 0, got {str(value)[:60]!r}.")
        return float(value)

    def flag(self, key: str) -> bool:
        """true or false; false where there is none."""
        value = self.get(key, False)
        if not isinstance(value, bool):
            raise BadInput(f"{self.where}: {key}: expected true or false, got {str(value)[:60]!r}.")
        return value

    def text(self, key: str) -> str:
        """A text; "" where there is none."""
        value = self.get(key, "")
        return value if isinstance(value, str) else ""
