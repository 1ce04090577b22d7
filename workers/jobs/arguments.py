"""The arguments of a `speculoos` command from the fields of a request, and values from texts of forms and commands."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from speculoos.errors import BadInput

Arguments = list[str]
PLAIN = re.compile(r"[0-9]{1,9}")
MAX_COUNTS = 12
MAX_BATCH, MAX_LAYERS = 64, 1000  # maximum values of a plan


class Operand(str):
    """A positional argument: a name or path, which may begin with a dash."""


def joined(arguments: Arguments) -> str:
    """The command for a shell. If an operand begins with a dash, all operands are last, after `--`."""
    operands = [argument for argument in arguments if isinstance(argument, Operand)]
    if any(argument.startswith("-") for argument in operands):
        arguments = [*(argument for argument in arguments if not isinstance(argument, Operand)), "--", *operands]
    return shlex.join(["speculoos", *arguments])


def value_of(text: str) -> Any:
    """The parsed JSON, or the text if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(value: Any) -> str:
    return (
        value if isinstance(value, str) and isinstance(value_of(value), str) else json.dumps(value, ensure_ascii=False)
    )


def option(key: str, value: Any, default: Any = None) -> Arguments:
    """`--key value`; nothing for an empty value or the default. Booleans are flags without a value."""
    if value is None or value in ("", default):
        return []
    flag = f"--{key.replace('_', '-')}"
    return [flag] if value is True else [f"--no-{flag[2:]}"] if value is False else valued(flag, value)


def valued(flag: str, value: Any) -> Arguments:
    """The option with its value, as one argument if the value begins with a dash."""
    return [f"{flag}={value}"] if str(value).startswith("-") else [flag, str(value)]


def pairs(flag: str, values: Mapping[str, Any]) -> Arguments:
    """The option repeated for each key=value."""
    return [argument for key, value in values.items() for argument in valued(flag, f"{key}={_text(value)}")]


def changed_options(request: Any, *keys: str) -> Arguments:
    """Options for fields that differ from their default; lists as `1,4,16`, mappings as key=value pairs."""
    arguments: Arguments = []
    settings = type(request).options()
    for key in keys:
        value, default = getattr(request, key), settings[key].default
        if value == default:
            continue
        if isinstance(value, list | tuple):
            arguments += option(key, ",".join(map(str, value)))
        elif isinstance(value, dict):
            arguments += pairs(f"--{key.replace('_', '-')}", value)
        else:
            arguments += option(key, value)
    return arguments


def each(key: str, values: Sequence[Any], default: Sequence[Any]) -> Arguments:
    """The option repeated for each value; nothing for the default values."""
    return (
        []
        if list(values) == list(default)
        else [argument for value in values for argument in valued(f"--{key}", value)]
    )


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
    if len(parts) > MAX_COUNTS or not all(PLAIN.fullmatch(part) and 1 <= int(part) <= most for part in parts):
        raise BadInput(f"{label}: expected comma-separated whole numbers from 1 to {most}, such as 1, 4, 16.")
    return sorted({int(part) for part in parts})
