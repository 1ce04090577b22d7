"""`speculoos endpoints`: adds and lists OpenAI-compatible servers in settings.toml."""

from typing import Annotated, Any

import typer

from cli.console import Json, finish, listed, say, table
from speculoos.servers import check_server, write_server
from speculoos.settings import FILE, Endpoint, load

app = listed("Servers that generate or are evaluated: the [endpoints.NAME] tables of settings.toml.")
Name = Annotated[str, typer.Argument(help="Name of the endpoint in pages and commands.")]


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
        int, typer.Option(min=0, help="Max requests per minute and server; 0: no limit.")
    ] = Endpoint.requests_per_minute,
    as_json: Json = False,
) -> None:
    """Add a server to settings.toml."""
    values = {"url": url[0] if len(url) == 1 else url, "key_env": key_env, "model": model, "timeout": timeout}
    values |= {"concurrency": concurrency, "retries": retries, "requests_per_minute": requests_per_minute}
    endpoint, settings = check_server("endpoints", name, values), load()
    write_server(settings, "endpoints", endpoint, new=True)
    say("Pages and jobs use it from now on.")
    if key_env and not endpoint.key:
        say(f"The variable {key_env} is not set in this shell; set it where the services start.")
    finish(_entry(endpoint), as_json, f"Added {name} to {settings.home / FILE}.")


@app.command("list")
def list_endpoints(as_json: Json = False) -> None:
    """List the endpoints, and whether the variable of each key is set."""
    entries = [_entry(each) for each in load().endpoints.values()]
    rows = []
    for each in entries:
        key = f"{each['key_env']} is {'set' if each['key_set'] else 'not set'}" if each["key_env"] else "none needed"
        rows.append((each["name"], ", ".join(each["urls"]), each["model"], key))
    finish(entries, as_json, table(rows, ("name", "url", "model", "key")))


def _entry(endpoint: Endpoint) -> dict[str, Any]:
    """The endpoint as JSON, without the key."""
    fields = {key: getattr(endpoint, key) for key in Endpoint.__dataclass_fields__ if key != "url"}
    return {**fields, "urls": endpoint.urls, "key_set": bool(endpoint.key)}
