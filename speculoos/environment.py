"""Reads settings from environment variables. NAME_FILE instead of NAME holds the path of a file with the value, such as
a container secret.

Every read function takes the environment, the variable's name and a default, and raises BadInput for an invalid value.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from speculoos.errors import BadInput

Env = Mapping[str, str]
Read = Callable[[Env, str, Any], Any]


def read_text(env: Env, name: str, default: str = "") -> str:
    """The value without surrounding whitespace."""
    if not (file := env.get(f"{name}_FILE")):
        return env.get(name, "").strip() or default
    try:
        return Path(file).read_text().strip() or default
    except OSError as error:
        raise BadInput(f"{name}_FILE: cannot read {file} ({error.strerror}).") from None


def read_list(env: Env, name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """A comma-separated list."""
    return tuple(part.strip() for part in read_text(env, name).split(",") if part.strip()) or default


def read_number(env: Env, name: str, default: int | None) -> int | None:
    """A whole number."""
    text = read_text(env, name)
    try:
        return int(text) if text else default
    except ValueError:
        raise BadInput(f"{name}: expected a whole number, got {text!r}.") from None


def read_count(env: Env, name: str, default: int | None) -> int | None:
    """A whole number, 0 or more."""
    number = read_number(env, name, default)
    if number is not None and number < 0:
        raise BadInput(f"{name}: expected a whole number, 0 or more, got {read_text(env, name)!r}.")
    return number


def read_port(env: Env, name: str, default: int) -> int:
    """A port from 1 to 65535; the default may be 0."""
    port = read_number(env, name, default)
    if read_text(env, name) and not 0 < port < 2**16:
        raise BadInput(f"{name}: expected a port from 1 to 65535, got {port}.")
    return port


def one_of(*known: str) -> Read:
    """A reader that accepts one of these words."""

    def read(env: Env, name: str, default: str) -> str:
        if (word := read_text(env, name, default)) not in known:
            expected = " or ".join(known) if len(known) == 2 else f"one of {', '.join(known)}"
            raise BadInput(f"{name}: expected {expected}, got {word!r}.")
        return word

    return read


def some_of(*known: str) -> Read:
    """A reader that accepts a comma-separated list of these words, without duplicates."""

    def read(env: Env, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        words = tuple(dict.fromkeys(read_list(env, name, default)))
        if unknown := [word for word in words if word not in known]:
            raise BadInput(f"{name}: expected some of {', '.join(known)}, got {unknown[0]!r}.")
        return words

    return read
