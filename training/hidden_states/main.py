"""Start the server of hidden states: bind the port, load and check the base model, serve until stopped."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import uvicorn

from models.base import LoadedBase, load_base, native_dtype, pick_device
from models.damage import NO_SUMS, BaseChecksums, weights_sum
from models.families import unsupported_reason
from models.logits import check_logits
from models.runtime.precision import enable_tf32
from models.runtime.weights import pack_supported
from speculoos.checksums import ChecksumCache
from speculoos.connections import BoundedConnection
from speculoos.errors import BadInput, Unavailable, Unsupported
from speculoos.settings import LOOPBACK
from training.hidden_states.request import RequestLimits
from training.hidden_states.server import StatesEngine, create_app

IDLE_SECONDS = 600
"""Keep-alive timeout: a training step between two requests may take minutes."""


@dataclass(frozen=True)
class ServerAddress:
    """Address to listen on, and the required token ("": none, on loopback only)."""

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
    address: ServerAddress,
    *,
    name: str = "",
    dtype: str = "float32",
    device: str = "auto",
    threads: int = 0,
    limits: RequestLimits | None = None,
    known: BaseChecksums | None = None,
    sums: ChecksumCache = NO_SUMS,
    say: Callable[[str], Any] = print,
) -> None:
    """Serve the base model in `folder` at `address` until stopped; `say` is called with the URL before it serves."""
    listening = listen(address)
    if threads:
        torch.set_num_threads(threads)
    base, sha256 = load_served_base(folder, dtype, device, known, sums)
    port = listening.getsockname()[1]
    engine = StatesEngine(base, sha256, name or Path(folder).name, limits or RequestLimits())
    app = create_app(engine, port, address.token)
    host = f"[{address.host}]" if ":" in address.host else address.host
    say(f"Hidden states of {engine.name} ({base.device}, {engine.facts()['dtype']}) at http://{host}:{port}")
    config = uvicorn.Config(
        app, http=BoundedConnection, log_level="warning", access_log=False, timeout_keep_alive=IDLE_SECONDS
    )
    uvicorn.Server(config).run(sockets=[listening])


def load_served_base(
    folder: str | Path, dtype: str, device: str, known: BaseChecksums | None = None, sums: ChecksumCache = NO_SUMS
) -> tuple[LoadedBase, str]:
    """The base model, checked and packed as for training, and the sha256 of its weights."""
    torch_device = pick_device(device)
    enable_tf32(torch_device)
    base = load_base(folder, native_dtype(dtype, torch_device), str(torch_device), known, sums)
    if reason := unsupported_reason(base.config.to_dict()):
        raise Unsupported(f"{folder} cannot be trained for: {reason}")
    check_logits(base)
    pack_supported(base, head=False)
    return base, weights_sum(Path(folder), sums)


def listen(address: ServerAddress) -> socket.socket:
    """A listening socket, opened before the model is loaded so that a used port fails at once. Raises Unavailable."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        raise Unavailable(
            f"The server of hidden states cannot listen on {address.host}:{address.port} ({error.strerror}); "
            "another may run there already: choose another --port."
        ) from None
