"""Settings out of environment variables. NAME_FILE in place of NAME holds the path of a file with the value.

What reads one takes the environment, the name and what holds where nothing is set, and raises BadInput naming the
variable that is wrong.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from speculoos.errors import BadInput

Env = Mapping[str, str]
Read = Callable[[Env, str, Any], Any]


def read_text(env: Env, name: str, default: str = "") -> str:
    """The value as it stands, without space around it."""
    if not (file := env.get(f"{name}_FILE")):
        return env.get(name, "").strip() or default
    try:
        return Path(file).read_text().strip() or default
    except OSError as error:
        raise BadInput(f"{name}_FILE: cannot read {file} ({error.strerror}).") from None


def read_list(env: Env, name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """What stands between commas."""
    return tuple(part.strip() for part in read_text(env, name).split(",") if part.strip()) or default


def read_number(env: Env, name: str, default: int | None) -> int | None:
    """A whole number."""
    given = read_text(env, name)
    try:
        return int(given) if given else default
    except ValueError:
        raise BadInput(f"{name}: expected a whole number, got {given!r}.") from None


def read_count(env: Env, name: str, default: int | None) -> int | None:
    """A whole number, 0 or more."""
    found = read_number(env, name, default)
    if found is not None and found < 0:
        raise BadInput(f"{name}: expected a whole number, 0 or more, got {read_text(env, name)!r}.")
    return found


def read_port(env: Env, name: str, default: int) -> int:
    """A port that can be listened on."""
    found = read_number(env, name, default)
    if read_text(env, name) and not 0 < found < 2**16:
        raise BadInput(f"{name}: expected a port from 1 to 65535, got {found}.")
    return found


def one_of(*known: str) -> Read:
    """Reads one of these words."""

    def read(env: Env, name: str, default: str) -> str:
        if (given := read_text(env, name, default)) not in known:
            words = " or ".join(known) if len(known) == 2 else f"one of {', '.join(known)}"
            raise BadInput(f"{name}: expected {words}, got {given!r}.")
        return given

    return read


def some_of(*known: str) -> Read:
    """Reads some of these words, comma-separated, each once."""

    def read(env: Env, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(read_list(env, name, default)))
        if wrong := [word for word in found if word not in known]:
            raise BadInput(f"{name}: expected some of {', '.join(known)}, got {wrong[0]!r}.")
        return found

    return read
