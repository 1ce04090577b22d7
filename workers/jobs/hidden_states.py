"""The hidden states server and store folder of a training, and the check that the server runs its base. No torch."""

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
"""Maximum response size in bytes."""


def find_server(settings: Settings, config: TrainConfig) -> HiddenStatesServer | None:
    """The server of a training; None if the training runs the base or reads stored states. Raises BadInput for an
    unknown name."""
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
    """Folder of the hidden states store `name`; None for ""."""
    return settings.hidden_states_folder / name if name else None


def check_server(settings: Settings, config: TrainConfig, base_id: str) -> None:
    """Raises BadInput or Unavailable if the hidden states server of a training does not respond, or runs another base.
    vLLM and SGLang do not report their weights; for these the training compares tokens."""
    server = find_server(settings, config)
    if server is None:
        return
    with reading(settings) as session:
        base = session.get(Base, base_id)
        expected = (base.weights_sha256, base.card or {}) if base else ("", {})
    _compare(server.name, _server_facts(server), *expected)


def _server_facts(server: HiddenStatesServer) -> dict[str, Any]:
    """The server's description of its base; {} for vLLM and SGLang. Raises Unavailable or BadInput."""
    import httpx

    is_speculoos = server.kind == "speculoos"
    path = {"speculoos": "/v1/base", "vllm": "/v1/models", "sglang": "/health"}[server.kind]
    headers = NO_COMPRESSION | ({"Authorization": f"Bearer {server.key}"} if server.key else {})
    title = f"The server of hidden states “{server.name}”"
    try:
        with httpx.stream("GET", server.root + path, headers=headers, timeout=SECONDS) as response:
            content = read_limited(response, LARGEST)
        facts = json.loads(content or b"") if is_speculoos and response.status_code == 200 else {}
    except httpx.HTTPError as error:
        raise Unavailable(
            f"{title} does not respond ({type(error).__name__}).", "Start it, or choose another one."
        ) from None
    except ValueError:
        facts = None
    if response.status_code in (401, 403):
        raise BadInput(
            f"{title} refuses the key ({response.status_code}).",
            f"Set {server.key_env or 'key_env in settings.toml'}.",
        )
    if response.status_code >= 400 or content is None or not isinstance(facts, dict):
        raise BadInput(f"{title} is not of kind {server.kind} ({response.status_code} for {path}); check its url.")
    return facts


def _compare(name: str, facts: dict[str, Any], weights_sha256: str, card: dict[str, Any]) -> None:
    """Raises BadInput for another base. Unknown values, of a base that is still downloading, are compared when the
    training starts."""
    pairs = (
        ("vocabulary", facts.get("vocab_size"), card.get("vocabulary")),
        ("hidden size", facts.get("hidden_size"), card.get("hidden_size")),
        ("sha256 of the weights", facts.get("base_sha256"), weights_sha256),
    )
    for label, served, expected in pairs if facts else ():
        if expected and served != expected:
            raise BadInput(
                f"The server of hidden states “{name}” runs another base model: its {label} is {str(served)[:12]}, "
                f"that of this base {str(expected)[:12]}.",
                "Serve this base model, or choose another server.",
            )
