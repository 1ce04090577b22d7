"""The server and the folder that a training names for its hidden states, and whether that server runs its base. No
torch here."""

import json
from pathlib import Path
from typing import Any

from models.methods.settings import FROM_STORE, TrainConfig
from speculoos.bounded import NO_COMPRESSION, read_limited
from speculoos.errors import BadInput, Unavailable
from speculoos.settings import HiddenStatesServer, Settings
from tracking.db import reading
from tracking.tables import Base

SECONDS = 10.0
LARGEST = 2**20
"""Bytes of what a server says of its base."""


def find_server(settings: Settings, config: TrainConfig) -> HiddenStatesServer | None:
    """None where the base runs in the training, or nothing runs it. Raises BadInput for an unknown name."""
    name = config.hidden_states
    if name in ("", FROM_STORE):
        return None
    if name not in (known := settings.state_servers):
        raise BadInput(
            f"hidden_states: there is no server named {name!r} in settings.toml; known are: "
            f"{', '.join(known) or 'none yet'}.",
            "Add a [hidden_states.NAME] table with its url, then retry.",
        )
    return known[name]


def store_folder(settings: Settings, name: str) -> Path | None:
    """Where the hidden states of the store `name` are kept; None for ""."""
    return settings.hidden_states_folder / name if name else None


def check_server(settings: Settings, config: TrainConfig, base_id: str) -> None:
    """Raises BadInput or Unavailable where the server of hidden states that a training names does not answer, or runs
    another base. Serving engines say nothing about their weights: the training compares their tokens."""
    server = find_server(settings, config)
    if server is None:
        return
    with reading(settings) as session:
        base = session.get(Base, base_id)
        known = (base.weights_sha256, base.card or {}) if base else ("", {})
    _compare(server.name, _facts(server), *known)


def _facts(server: HiddenStatesServer) -> dict[str, Any]:
    """What the server says of its base; {} of an engine that answers."""
    import httpx

    own = server.kind == "speculoos"
    path = {"speculoos": "/v1/base", "vllm": "/v1/models", "sglang": "/health"}[server.kind]
    headers = NO_COMPRESSION | ({"Authorization": f"Bearer {server.key}"} if server.key else {})
    where = f"The server of hidden states “{server.name}”"
    try:
        with httpx.stream("GET", server.root + path, headers=headers, timeout=SECONDS) as response:
            content = read_limited(response, LARGEST)
        facts = json.loads(content or b"") if own and response.status_code == 200 else {}
    except httpx.HTTPError as error:
        raise Unavailable(
            f"{where} does not answer ({type(error).__name__}).", "Start it, or choose another."
        ) from None
    except ValueError:
        facts = None
    if response.status_code in (401, 403):
        raise BadInput(
            f"{where} refuses us ({response.status_code}).", f"Set {server.key_env or 'key_env in settings.toml'}."
        )
    if response.status_code >= 400 or content is None or not isinstance(facts, dict):
        raise BadInput(f"{where} is none of kind {server.kind} ({response.status_code} for {path}); check its url.")
    return facts


def _compare(name: str, facts: dict[str, Any], weights_sha256: str, card: dict[str, Any]) -> None:
    """What is not known yet, of a base that is still being fetched, is compared when the training begins."""
    pairs = (
        ("vocabulary", facts.get("vocab_size"), card.get("vocabulary")),
        ("hidden size", facts.get("hidden_size"), card.get("hidden_size")),
        ("sha256 of the weights", facts.get("base_sha256"), weights_sha256),
    )
    for words, served, wanted in pairs if facts else ():
        if wanted and served != wanted:
            raise BadInput(
                f"The server of hidden states “{name}” runs another base: its {words} is {str(served)[:12]}, that of "
                f"the base trained for {str(wanted)[:12]}.",
                "Serve the base that is trained for, or choose another server.",
            )
