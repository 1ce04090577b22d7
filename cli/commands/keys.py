"""`speculoos keys`: API keys of the inference server, besides the token of the home."""

from typing import Annotated

import typer

from cli.console import Json, finish, listed, say, table
from ops.homes import columns, open_home
from tracking import keys
from tracking.db import reading, writing

app = listed("API keys of the inference server, one per client.")


@app.command()
def add(name: Annotated[str, typer.Argument(help="User or client of the key.")], as_json: Json = False) -> None:
    """Create a key and print it. It cannot be shown again: only its sha256 is stored."""
    with writing(open_home()) as session:
        key, secret = keys.make_key(session, name)
        result = columns(key, "sha256", "note")
    say(f"The key of {key.name!r}; it cannot be shown again:")
    finish({**result, "key": secret}, as_json, secret)


@app.command("list")
def list_keys(
    revoked: Annotated[bool, typer.Option("--revoked", help="Include revoked keys.")] = False, as_json: Json = False
) -> None:
    """List the keys: first characters, creation time and last use."""
    with reading(open_home()) as session:
        entries = [columns(key, "sha256", "note") for key in keys.list_keys(session, revoked)]
    heads = ("name", "hint", "created_at", "last_used_at", *(["revoked_at"] if revoked else []))
    rows = [
        [str(key[head] or "never")[:19] if head.endswith("_at") else key[head] for head in heads] for key in entries
    ]
    finish(entries, as_json, table(rows, heads))


@app.command()
def revoke(
    reference: Annotated[str, typer.Argument(metavar="NAME", help="Name or id of a key.")], as_json: Json = False
) -> None:
    """Revoke a key; requests with it are rejected within a second."""
    with writing(open_home()) as session:
        result = columns(keys.revoke(session, reference), "sha256", "note")
    finish(result, as_json, f"Revoked {result['name']}.")
