"""Values and column types that every supported database can store."""

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
    """`value` as JSON that every database can store: NUL characters (PostgreSQL) and lone surrogates are replaced by
    U+FFFD, NaN and infinity by None."""
    if isinstance(value, str):
        return UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value


class CheckedType(TypeDecorator):
    """A column type that reports an unreadable value as damage of the database."""

    def result_processor(self, dialect: Dialect, coltype: Any) -> Callable[[Any], Any] | None:
        """The processor raises DatabaseError, as the driver does for malformed pages."""
        read = super().result_processor(dialect, coltype)

        def checked(value: Any) -> Any:
            try:
                return read(value)
            except ValueError as error:
                raise DatabaseError("", None, ValueError(f"malformed value: {error}")) from error

        return checked if read else None


class Json(CheckedType):
    """A JSON object, made `storable`."""

    impl = JSON().with_variant(JSONB(), "postgresql")
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return storable(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if value is not None and not isinstance(value, dict):
            raise ValueError("JSON that is not an object")
        return value
