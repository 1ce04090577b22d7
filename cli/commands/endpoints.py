"""speculoos endpoints: the OpenAI-compatible servers of settings.toml, added and removed without an editor."""

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
from speculoos.settings import Endpoint, check_endpoint, load

app = listed("Servers that answer and that are measured: the [endpoints.NAME] tables of settings.toml.")
NAME, VARIABLE = re.compile(r"[A-Za-z0-9_-]{1,64}"), re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
Name = Annotated[str, typer.Argument(help="Name by which pages and commands choose it.")]
RESTART = "Services that run read settings.toml at their next start."


@app.command()
def add(
    name: Name,
    url: Annotated[
        list[str], typer.Option(help="Base URL, such as http://host:8000/v1; once for each of several equal servers.")
    ],
    key_env: Annotated[
        str, typer.Option(help="Environment variable that holds the API key. The key itself is never stored.")
    ] = "",
    model: Annotated[str, typer.Option(help="Model to ask for; default: named each time.")] = "",
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once to each server.")] = Endpoint.concurrency,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that one request may take.")] = Endpoint.timeout,
    retries: Annotated[int, typer.Option(min=0, help="Further tries of a failed request.")] = Endpoint.retries,
    requests_per_minute: Annotated[
        int, typer.Option(min=0, help="Most requests a minute to each server; 0 for no limit.")
    ] = Endpoint.requests_per_minute,
    as_json: Json = False,
) -> None:
    """Add a server to settings.toml."""
    if not NAME.fullmatch(name):
        raise BadInput(f"Endpoint name {name!r}: use up to 64 letters, digits, dashes and underscores.")
    if key_env and not VARIABLE.fullmatch(key_env):  # may be a key by mistake, so it is not repeated
        raise BadInput("--key-env: expected the name of an environment variable, such as TEAM_KEY; never a key.")
    if any("@" in urlsplit(each).netloc for each in url):
        raise BadInput("--url: leave user and password out; name the variable that holds the key with --key-env.")
    given = {"model": model, "concurrency": concurrency, "timeout": timeout, "retries": retries}
    given |= {"key_env": key_env, "requests_per_minute": requests_per_minute}
    endpoint = Endpoint(name, url[0] if len(url) == 1 else url, **given)
    check_endpoint(endpoint, f"Endpoint {name}:")
    settings = load()
    if name in settings.endpoints:
        raise BadInput(f"There is an endpoint {name!r} already; remove it first: speculoos endpoints rm {name}.")
    file = settings.home / "settings.toml"
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    _write(file, "\n\n".join(filter(None, [before.rstrip("\n"), _table(endpoint)])) + "\n")
    say(RESTART)
    if key_env and not endpoint.key:
        say(f"The variable {key_env} is not set here; set it where the services start.")
    finish(_entry(endpoint), as_json, f"Added {name} to {file}.")


@app.command("list")
def list_endpoints(as_json: Json = False) -> None:
    """Every endpoint, and whether its key's variable is set."""
    entries = [_entry(each) for each in load().endpoints.values()]
    rows = [(each["name"], ", ".join(each["urls"]), each["model"], _key(each)) for each in entries]
    finish(entries, as_json, table(rows, ("name", "url", "model", "key")))


@app.command("rm")
def remove(name: Name, as_json: Json = False) -> None:
    """Take an endpoint out of settings.toml."""
    settings = load()
    if name not in settings.endpoints:
        known = ", ".join(settings.endpoints) or "none yet"
        raise NotFound(f"There is no endpoint {name!r} in settings.toml; known are: {known}.")
    file = settings.home / "settings.toml"
    before = file.read_text(encoding="utf-8")
    text = _without(before, name)
    wanted = tomllib.loads(before)
    del wanted["endpoints"][name]
    if {"endpoints": {}, **_parsed(text)} != wanted:  # written in another style, as an inline table, say
        raise BadInput(f"{file}: the endpoint {name!r} is not in a table of its own; remove it with an editor.")
    _write(file, text)
    say(RESTART)
    finish({"name": name, "removed": True}, as_json, f"Removed {name}.")


def _table(endpoint: Endpoint) -> str:
    """As TOML, without what is at its default."""
    lines = [f"[endpoints.{endpoint.name}]"]
    for key, field in Endpoint.__dataclass_fields__.items():
        if key != "name" and (value := getattr(endpoint, key)) != field.default:
            lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


def _without(text: str, name: str) -> str:
    """The file's text without the table of that name; comments above the next table stay."""
    head = re.compile(rf'\s*\[\s*endpoints\s*\.\s*(["\']?){re.escape(name)}\1\s*\]')
    kept, above, skipping = [], [], False
    for line in text.splitlines(keepends=True):
        skipping = bool(head.match(line)) or (skipping and not line.lstrip().startswith("["))
        if not skipping:
            kept += [*above, line]
        above = [*above, line] if skipping and line.lstrip()[:1] in ("", "#") else []
    return "".join(kept)


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError:
        return {}


def _write(file: Path, text: str) -> None:
    """Whole or not at all, through a link, with the rights that the file has. Raises BadInput for what is no TOML."""
    from speculoos.files import new_path

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
    """Without the key."""
    named = {key: getattr(endpoint, key) for key in Endpoint.__dataclass_fields__ if key != "url"}
    return {**named, "urls": endpoint.urls, "key_set": bool(endpoint.key)}


def _key(entry: dict[str, Any]) -> str:
    if not entry["key_env"]:
        return "none needed"
    return f"{entry['key_env']} is {'set' if entry['key_set'] else 'not set'}"
