"""Changes of a home while it is used: the servers in settings.toml and the secrets that replace environment variables.

Comments and all other tables of settings.toml stay as they are. Processes read both at the next job or page.
"""

import json
import os
import re
import shutil
import threading
import tomllib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from speculoos.errors import BadInput, Conflict, Unsupported
from speculoos.files import new_path, new_private_file
from speculoos.redaction import SINCE_START
from speculoos.settings import (
    FILE,
    VARIABLE,
    Endpoint,
    HiddenStatesServer,
    Settings,
    make_record,
    read_text,
    secret_file,
    servers_of,
)

Server = Endpoint | HiddenStatesServer
KINDS: dict[str, type[Server]] = {"endpoints": Endpoint, "hidden_states": HiddenStatesServer}
"""Section of settings.toml → what its tables describe."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
FIELDS = {"endpoints": "endpoints", "hidden_states": "state_servers"}
"""Section of settings.toml → field of Settings."""
SHARED = (
    "Only the operator of a shared server can change tokens and servers: with `speculoos endpoints`, in settings.toml "
    "and in the environment."
)
FROM_ENVIRONMENT = "{name} is set in the environment of this server, which takes precedence; change it there."
LONGEST_SECRET = 4000
LOCK = threading.Lock()
"""Serializes changes by this process: each reads the file and replaces it."""


def require_operator(settings: Settings) -> None:
    """Raises Unsupported on a shared server: its users could make it send requests into its own network."""
    if settings.is_shared:
        raise Unsupported(SHARED)


def store_secret(settings: Settings, name: str, value: str) -> None:
    """Store a secret for the variable `name`, readable by this user only. Raises BadInput."""
    require_operator(settings)
    if from_environment(name):
        raise BadInput(FROM_ENVIRONMENT.format(name=name))
    value = value.strip()
    if not value or not (value.isascii() and value.isprintable()) or " " in value or len(value) > LONGEST_SECRET:
        raise BadInput("A token or key has 1 to 4,000 letters, digits and signs, without spaces.")
    path = secret_file(settings.home, name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    SINCE_START.append(value)
    with new_private_file(path) as handle:
        handle.write(f"{value}\n".encode())


def delete_secret(settings: Settings, name: str) -> None:
    """Delete a stored secret; a missing one is no error."""
    require_operator(settings)
    secret_file(settings.home, name).unlink(missing_ok=True)


def from_environment(name: str) -> bool:
    return bool(name and read_text(os.environ, name))


def known_servers(settings: Settings) -> dict[str, Server]:
    """The servers of settings.toml by `section/name`. Raises BadInput."""
    servers = servers_of(settings.home)
    return {f"{section}/{name}": each for section, field in FIELDS.items() for name, each in servers[field].items()}


def save_server(settings: Settings, section: str, name: str, url: str, key: str = "", **values: str) -> None:
    """Add a server, or change its URL (several: separated by spaces), `values` and key ("": keep). Raises BadInput."""
    require_operator(settings)
    urls, old = url.split(), known_servers(settings).get(f"{section}/{name}")
    fields = {field: getattr(old, field) for field in type(old).__dataclass_fields__ if field != "name"} if old else {}
    fields |= {"url": urls if len(urls) > 1 else "".join(urls), **values}
    if key:
        fields["key_env"] = fields.get("key_env") or variable_of(section, name)
    server = check_server(section, name, fields)
    if old and old.key and not key and server.url != old.url:
        raise BadInput("Enter the key again to change the URL, so that the stored key is not sent to another server.")
    if key:
        store_secret(settings, server.key_env, key)
    write_server(settings, section, server)


def delete_server(settings: Settings, section: str, name: str) -> None:
    """Remove a server from settings.toml, and the key that was stored for it; a missing one is no error."""
    require_operator(settings)
    _write_table(settings.home / FILE, section, name, None)
    delete_secret(settings, variable_of(section, name))


def variable_of(section: str, name: str) -> str:
    """Name of the variable that a stored key replaces: one per server, of letters, digits and underscores."""
    distinct = f"_{zlib.crc32(name.encode()):08x}" if "-" in name else ""
    return f"{section}_{name.replace('-', '_')}{distinct}_KEY"


def check_server(section: str, name: str, values: Mapping[str, Any]) -> Server:
    """The server that `values` describe. Raises BadInput; no message repeats what may be a key."""
    where = f"{section.replace('_', ' ').removesuffix('s').capitalize()} {name}:"
    if not NAME.fullmatch(name):
        raise BadInput(f"Name {name[:80]!r}: use up to 64 letters, digits, dashes and underscores.")
    if values.get("key_env") and not VARIABLE.fullmatch(values["key_env"]):
        raise BadInput("key_env: expected the name of an environment variable, such as TEAM_KEY, not a key.")
    record = make_record(KINDS[section], where, name, values)
    for url in [record.url] if isinstance(record.url, str) else record.url:
        if not url.isprintable() or " " in url or not _host(url):
            raise BadInput(f"{where} url: expected http:// or https:// and a host, without spaces.")
        if "@" in urlsplit(url).netloc:
            raise BadInput("url: leave user and password out; the key of a server is stored separately.")
    if not record.model.isprintable():
        raise BadInput(f"{where} model: expected one line of text.")
    return record


def write_server(settings: Settings, section: str, server: Server, new: bool = False) -> None:
    """Write the table of a server to settings.toml, without fields that have their default. Raises BadInput, or
    Conflict if a `new` one exists."""
    fields = {key: field.default for key, field in type(server).__dataclass_fields__.items() if key != "name"}
    values = {key: getattr(server, key) for key, default in fields.items() if getattr(server, key) != default}
    _write_table(settings.home / FILE, section, server.name, values, new)


def _write_table(file: Path, section: str, name: str, values: dict[str, Any] | None, new: bool = False) -> None:
    """Set or (None) remove a table. Unless the new text parses to exactly that, the file stays as it is: a
    table may be written in ways that are not supported here."""
    file = file.resolve()  # it may be a symbolic link
    with LOCK:
        try:
            text = file.read_text(encoding="utf-8") if file.exists() else ""
            wanted = tomllib.loads(text)
            tables = wanted.setdefault(section, {})
            if new and name in tables:
                raise Conflict(f"There is already a server {name!r} in [{section}] of {file}.")
            text = _changed(text, section, name, values)
            tables.pop(name, None)
            if values is not None:
                tables[name] = values
            if {section: {}} | tomllib.loads(text) != wanted:
                raise ValueError(f"[{section}.{name}] is written in another way")
        except (ValueError, OSError, TypeError, AttributeError) as error:
            raise BadInput(f"{file} cannot be changed here ({error}); change it by hand.") from None
        file.parent.mkdir(parents=True, exist_ok=True)
        with new_path(file) as temporary:
            temporary.write_text(text, encoding="utf-8")
            if file.exists():
                shutil.copymode(file, temporary)


def _changed(text: str, section: str, name: str, values: dict[str, Any] | None) -> str:
    """The text with the table changed, added at the end or removed; comments stay, except at the end of a line whose
    value changes."""
    header = re.compile(rf"\s*\[\s*{section}\s*\.\s*[\"']?{name}[\"']?\s*\]")
    # JSON of printable texts, numbers and lists is TOML
    lines, new_lines = (
        text.rstrip("\n").split("\n"),
        [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in (values or {}).items()],
    )
    start = next((at for at, line in enumerate(lines) if header.match(line)), None)
    if start is None:
        table = "\n".join([f"[{section}.{name}]", *new_lines])
        return text if values is None else "\n\n".join(filter(None, [text.rstrip("\n"), table])) + "\n"
    end = next((at for at in range(start + 1, len(lines)) if lines[at].lstrip().startswith("[")), len(lines))
    new_line_of, kept_lines = dict(zip(values or (), new_lines, strict=True)), []
    for line in lines[start + 1 : end]:
        key, is_value, _ = line.partition("=")
        if not is_value or line.lstrip().startswith("#"):
            kept_lines.append(line)
        elif same := new_line_of.pop(key.strip(), ""):
            kept_lines.append(line if tomllib.loads(line) == tomllib.loads(same) else same)
    head = [] if values is None else [lines[start], *new_line_of.values()]
    return "\n".join([*lines[:start], *head, *kept_lines, *lines[end:]]).strip("\n") + "\n"


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
