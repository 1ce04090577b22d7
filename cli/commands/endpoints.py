"""`speculoos endpoints`: adds and lists OpenAI-compatible servers in settings.toml."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from cli.console import Json, finish, listed, say, table
from speculoos.errors import BadInput
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
        raise BadInput(f"The endpoint {name!r} already exists; change its table in settings.toml.")
    file = settings.home / "settings.toml"
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    table_lines = [f"[endpoints.{name}]"]  # without fields that have their default
    for key, field in Endpoint.__dataclass_fields__.items():
        if key != "name" and (value := getattr(endpoint, key)) != field.default:
            table_lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    _write(file, "\n\n".join(filter(None, [before.rstrip("\n"), "\n".join(table_lines)])) + "\n")
    say(RESTART)
    if key_env and not endpoint.key:
        say(f"The variable {key_env} is not set in this shell; set it where the services start.")
    finish(_entry(endpoint), as_json, f"Added {name} to {file}.")


@app.command("list")
def list_endpoints(as_json: Json = False) -> None:
    """List the endpoints, and whether the variable of each key is set."""
    entries = [_entry(each) for each in load().endpoints.values()]
    rows = []
    for each in entries:
        key = f"{each['key_env']} is {'set' if each['key_set'] else 'not set'}" if each["key_env"] else "none needed"
        rows.append((each["name"], ", ".join(each["urls"]), each["model"], key))
    finish(entries, as_json, table(rows, ("name", "url", "model", "key")))


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
