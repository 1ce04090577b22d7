"""What every database takes, and what it gives back."""

import math
import re
from collections.abc import Callable
from typing import Any

from sqlalchemy import JSON
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DatabaseError
from sqlalchemy.types import TypeDecorator

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(value: Any) -> Any:
    """JSON that every database takes: PostgreSQL stores no NUL character, none stores half of a character, and JSON
    knows no NaN and no infinity."""
    if isinstance(value, str):
        return UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value


class Written(TypeDecorator):
    """A type of columns in which a value that cannot be read is damage of the database, not a fault of ours."""

    def result_processor(self, dialect: Dialect, coltype: Any) -> Callable[[Any], Any] | None:
        """Raises DatabaseError, as the driver does for pages that are malformed."""
        read = super().result_processor(dialect, coltype)

        def checked(value: Any) -> Any:
            try:
                return read(value)
            except ValueError as error:
                raise DatabaseError("", None, ValueError(f"malformed value: {error}")) from error

        return checked if read else None


class Json(Written):
    """A JSON object in which nothing stands that a database refuses."""

    impl = JSON().with_variant(JSONB(), "postgresql")
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return storable(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if value is not None and not isinstance(value, dict):
            raise ValueError("JSON that is not an object")
        return value
