"""`speculoos endpoints`: adds and removes OpenAI-compatible servers in settings.toml."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from cli.console import Json, finish, listed, say, table
from speculoos.errors import BadInput, NotFound
from speculoos.files import new_path
from speculoos.settings import Endpoint, load, make_record

app = listed("Servers that generate or are evaluated: the [endpoints.NAME] tables of settings.toml.")
NAME, VARIABLE = re.compile(r"[A-Za-z0-9_-]{1,64}"), re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
Name = Annotated[str, typer.Argument(help="Name of the endpoint in pages and commands.")]
RESTART = "Restart the services to apply the change; they read settings.toml when they start."


@app.command()
def add(
    name: Name,
    url: Annotated[
        list[str], typer.Option(help="Base URL, such as http://host:8000/v1; repeat it for several equal servers.")
    ],
    key_env: Annotated[
        str, typer.Option(help="Environment variable with the API key. The key itself is never stored.")
    ] = "",
    model: Annotated[str, typer.Option(help="Default model name in requests.")] = "",
    concurrency: Annotated[int, typer.Option(min=1, help="Concurrent requests per server.")] = Endpoint.concurrency,
    timeout: Annotated[float, typer.Option(min=0.1, help="Timeout of a request in seconds.")] = Endpoint.timeout,
    retries: Annotated[int, typer.Option(min=0, help="Retries of a failed request.")] = Endpoint.retries,
    requests_per_minute: Annotated[
        int, typer.Option(min=0, help="Maximum requests per minute and server; 0: no limit.")
    ] = Endpoint.requests_per_minute,
    as_json: Json = False,
) -> None:
    """Add a server to settings.toml."""
    if not NAME.fullmatch(name):
        raise BadInput(f"Endpoint name {name!r}: use up to 64 letters, digits, dashes and underscores.")
    if key_env and not VARIABLE.fullmatch(key_env):  # may be a key by mistake, so the message does not repeat it
        raise BadInput("--key-env: expected the name of an environment variable, such as TEAM_KEY, not a key.")
    if any("@" in urlsplit(each).netloc for each in url):
        raise BadInput("--url: leave user and password out; set the variable with the key by --key-env.")
    values = {"url": url[0] if len(url) == 1 else url, "key_env": key_env, "model": model, "timeout": timeout}
    values |= {"concurrency": concurrency, "retries": retries, "requests_per_minute": requests_per_minute}
    endpoint = make_record(Endpoint, f"Endpoint {name}:", name, values)
    settings = load()
    if name in settings.endpoints:
        raise BadInput(f"The endpoint {name!r} already exists; remove it first: speculoos endpoints rm {name}.")
    file = settings.home / "settings.toml"
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    _write(file, "\n\n".join(filter(None, [before.rstrip("\n"), _toml_table(endpoint)])) + "\n")
    say(RESTART)
    if key_env and not endpoint.key:
        say(f"The variable {key_env} is not set in this shell; set it where the services start.")
    finish(_entry(endpoint), as_json, f"Added {name} to {file}.")


@app.command("list")
def list_endpoints(as_json: Json = False) -> None:
    """List the endpoints, and whether the variable of each key is set."""
    entries = [_entry(each) for each in load().endpoints.values()]
    rows = [(each["name"], ", ".join(each["urls"]), each["model"], _key_state(each)) for each in entries]
    finish(entries, as_json, table(rows, ("name", "url", "model", "key")))


@app.command("rm")
def remove(name: Name, as_json: Json = False) -> None:
    """Remove an endpoint from settings.toml."""
    settings = load()
    if name not in settings.endpoints:
        known = ", ".join(settings.endpoints) or "none yet"
        raise NotFound(f"There is no endpoint {name!r} in settings.toml; known are: {known}.")
    file = settings.home / "settings.toml"
    before = file.read_text(encoding="utf-8")
    text = _without_table(before, name)
    expected = tomllib.loads(before)
    del expected["endpoints"][name]
    if {"endpoints": {}, **_parsed(text)} != expected:  # in another style, such as an inline table
        raise BadInput(f"{file}: the endpoint {name!r} is not in its own table; remove it with an editor.")
    _write(file, text)
    say(RESTART)
    finish({"name": name, "removed": True}, as_json, f"Removed {name}.")


def _toml_table(endpoint: Endpoint) -> str:
    """The endpoint as a TOML table, without fields that have their default."""
    lines = [f"[endpoints.{endpoint.name}]"]
    for key, field in Endpoint.__dataclass_fields__.items():
        if key != "name" and (value := getattr(endpoint, key)) != field.default:
            lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


def _without_table(text: str, name: str) -> str:
    """The file's text without the table of endpoint `name`; comments above the next table remain."""
    head = re.compile(rf'\s*\[\s*endpoints\s*\.\s*(["\']?){re.escape(name)}\1\s*\]')
    remaining, above, skipping = [], [], False
    for line in text.splitlines(keepends=True):
        skipping = bool(head.match(line)) or (skipping and not line.lstrip().startswith("["))
        if not skipping:
            remaining += [*above, line]
        above = [*above, line] if skipping and line.lstrip()[:1] in ("", "#") else []
    return "".join(remaining)


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError:
        return {}


def _write(file: Path, text: str) -> None:
    """Write atomically; follows a symbolic link and keeps the file's mode. Raises BadInput for invalid TOML."""
    try:
        tomllib.loads(text)
    except ValueError as error:
        raise BadInput(f"{file}: this endpoint cannot be written as TOML ({error}).") from None
    file = file.resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    with new_path(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
        if file.exists():
            shutil.copymode(file, temporary)


def _entry(endpoint: Endpoint) -> dict[str, Any]:
    """The endpoint as JSON, without the key."""
    fields = {key: getattr(endpoint, key) for key in Endpoint.__dataclass_fields__ if key != "url"}
    return {**fields, "urls": endpoint.urls, "key_set": bool(endpoint.key)}


def _key_state(entry: dict[str, Any]) -> str:
    if not entry["key_env"]:
        return "none needed"
    return f"{entry['key_env']} is {'set' if entry['key_set'] else 'not set'}"
