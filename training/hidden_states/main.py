"""Starting the server of hidden states: load, check, listen, serve until told to stop."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import uvicorn

from models.base import LoadedBase, load_base, native_dtype, pick_device
from models.damage import NO_SUMS, Known, weights_sum
from models.families import why_not
from models.logits import check_logits
from models.runtime.precision import quick_products
from models.runtime.weights import pack_known
from speculoos.connections import BoundedConnection
from speculoos.errors import BadInput, Unavailable, Unsupported
from speculoos.settings import LOOPBACK
from speculoos.sums import Sums
from training.hidden_states.request import RequestLimits
from training.hidden_states.server import Giver, create_app

IDLE_SECONDS = 600
"""How long a connection is kept: a step between two requests may take minutes."""


@dataclass(frozen=True)
class ServerFolder:
    """Where to listen, and the token to ask for ("": none, on loopback only)."""

    host: str = "127.0.0.1"
    port: int = 7862
    token: str = ""

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.token:
            raise BadInput(
                f"The server of hidden states would listen on {self.host} without a token; "
                "set SPECULOOS_FEATURES_TOKEN (or SPECULOOS_FEATURES_TOKEN_FILE)."
            )


def serve(
    folder: str | Path,
    place: ServerFolder,
    *,
    name: str = "",
    dtype: str = "float32",
    device: str = "auto",
    threads: int = 0,
    limits: RequestLimits | None = None,
    known: Known | None = None,
    sums: Sums = NO_SUMS,
    say: Callable[[str], Any] = print,
) -> None:
    """Serve the base in `folder` at `place` until told to stop; `say` hears the address once it answers."""
    listening = listen(place)
    if threads:
        torch.set_num_threads(threads)
    base, sha256 = prepared(folder, dtype, device, known, sums)
    port = listening.getsockname()[1]
    giver = Giver(base, sha256, name or Path(folder).name, limits or RequestLimits())
    app = create_app(giver, port, place.token)
    shown = f"[{place.host}]" if ":" in place.host else place.host
    say(f"Hidden states of {giver.name} ({base.device}, {giver.facts()['dtype']}) at http://{shown}:{port}")
    config = uvicorn.Config(
        app, http=BoundedConnection, log_level="warning", access_log=False, timeout_keep_alive=IDLE_SECONDS
    )
    uvicorn.Server(config).run(sockets=[listening])


def prepared(
    folder: str | Path, dtype: str, device: str, known: Known | None = None, sums: Sums = NO_SUMS
) -> tuple[LoadedBase, str]:
    """The base as a training has it, checked and packed, and the sha256 of its weights."""
    place = pick_device(device)
    quick_products(place)
    base = load_base(folder, native_dtype(dtype, place), str(place), known, sums)
    if reason := why_not(base.config.to_dict()):
        raise Unsupported(f"{folder} cannot be trained for: {reason}")
    check_logits(base)
    pack_known(base, head=False)
    return base, weights_sum(Path(folder), sums)


def listen(place: ServerFolder) -> socket.socket:
    """A listening socket, before the base is loaded: a second server says so at once. Raises Unavailable."""
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    try:
        return socket.create_server((place.host, place.port), family=family)
    except OSError as error:
        raise Unavailable(
            f"The server of hidden states cannot listen on {place.host}:{place.port} ({error.strerror}); "
            "another may run there already: choose another --port."
        ) from None
