"""Builds the arguments of a `speculoos` command from the fields of a request."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

Words = list[str]


class Operand(str):
    """A positional argument: a name or path, which may begin with a dash."""


def joined(words: Words) -> str:
    """The command for a shell. If an operand begins with a dash, all operands are last, after `--`."""
    operands = [word for word in words if isinstance(word, Operand)]
    if any(word.startswith("-") for word in operands):
        words = [*(word for word in words if not isinstance(word, Operand)), "--", *operands]
    return shlex.join(["speculoos", *words])


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


def option(key: str, value: Any, default: Any = None) -> Words:
    """`--key value`; nothing for an empty value or the default. Booleans are flags without a value."""
    if value is None or value in ("", default):
        return []
    flag = f"--{key.replace('_', '-')}"
    return [flag] if value is True else [f"--no-{flag[2:]}"] if value is False else valued(flag, value)


def valued(flag: str, value: Any) -> Words:
    """The option with its value, as one argument if the value begins with a dash."""
    return [f"{flag}={value}"] if str(value).startswith("-") else [flag, str(value)]


def pairs(flag: str, values: Mapping[str, Any]) -> Words:
    """The option repeated for each key=value."""
    return [word for key, value in values.items() for word in valued(flag, f"{key}={_text(value)}")]


def changed_options(request: Any, *keys: str) -> Words:
    """Options for fields that differ from their default; lists as `1,4,16`, mappings as key=value pairs."""
    words: Words = []
    settings = type(request).options()
    for key in keys:
        value, default = getattr(request, key), settings[key].default
        if value == default:
            continue
        if isinstance(value, list | tuple):
            words += option(key, ",".join(map(str, value)))
        elif isinstance(value, dict):
            words += pairs(f"--{key.replace('_', '-')}", value)
        else:
            words += option(key, value)
    return words


def each(key: str, values: Sequence[Any], default: Sequence[Any]) -> Words:
    """The option repeated for each value; nothing for the default values."""
    return [] if list(values) == list(default) else [word for value in values for word in valued(f"--{key}", value)]
