"""Client of vLLM with `extract_hidden_states` and its ExampleHiddenStatesConnector, started as speculators does: the
response to a completion names a safetensors file in a shared folder, which is locked while it is written.

The file holds `hidden_states` [tokens, columns, H] and `token_ids`. For the layer ids the server was started with, a
column is the *input* of layer i (our 0-based output i − 1), before any norm; the last one is the last layer's output.
vLLM reports no checksum: the tokens that it generates are compared with those of our base model's head.
"""

import fcntl
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from speculoos.errors import BadInput, Unavailable, Unsupported
from speculoos.settings import HiddenStatesServer
from training.hidden_states.client import DaemonPool, StatesClient, StatesConnection, TemporarilyUnavailable
from training.hidden_states.wire import MIN_LAYER_LIMIT, HiddenStates, StatesRequest, check_shapes, concat_states

CHECK_ROWS, CHECK_TOKENS = 6, 64
JSON_NUMBER_CHARS = 32  # maximum characters of one number in JSON, separator included
WRITE_SECONDS = 60.0
POLL_SECONDS = 0.02


class VllmClient(StatesClient):
    """Requests a completion of one token for each row; reads and removes the file in the shared folder."""

    def __init__(self, server: HiddenStatesServer, base: Any):
        self.connection, self.base, self.server, self._model = StatesConnection(server), base, server, server.model
        self._daemons = DaemonPool(server.concurrency)

    def check(self, rows: Sequence[Tensor]) -> str:
        """At least half of the tokens must match, since near ties may differ."""
        answers = [self._row(row[:CHECK_TOKENS].tolist(), ()) for row in rows[:CHECK_ROWS]]
        chosen = [(states.hidden[-1], token) for states, token in answers if token is not None]
        source = f"Hidden states come from vLLM “{self.server.name}”, which runs {self.model}"
        if not chosen:
            return f"{source}: it does not report the tokens it chose, so its base model cannot be verified."
        last = torch.stack([hidden for hidden, _ in chosen]).to(self.base.device, self.base.dtype)
        with torch.no_grad():
            ours = self.base.logits(last).argmax(-1).tolist()
        same = sum(our == token for our, (_, token) in zip(ours, chosen, strict=True))
        if same * 2 < len(chosen):
            raise BadInput(
                f"The server of hidden states “{self.server.name}” chose the token that this base's head computes from "
                f"its hidden states in {same} of {len(chosen)} rows: it runs another base, or sends other layers.",
                "Serve the base model of this training, with the layers named in docs/training.md.",
            )
        return f"{source}: {same} of {len(chosen)} tokens it chose are those of this base's head."

    def states(self, request: StatesRequest) -> HiddenStates:
        futures = [self._daemons.call(self._row, row.tolist(), request.layers) for row in request.rows]
        parts = []
        for number, future in enumerate(futures):
            row, _ = future.result()
            hidden = row.hidden if request.positions is None else row.hidden[request.positions[number].long()]
            parts.append(HiddenStates(hidden, row.aux))
        result = concat_states(parts)
        check_shapes(result, request, self.base.hidden_size)
        return result

    def close(self) -> None:
        self._daemons.close()
        self.connection.close()

    @property
    def model(self) -> str:
        if not self._model:
            models = self.connection.json("GET", "/v1/models")
            try:
                self._model = models["data"][0]["id"]
            except (KeyError, IndexError, TypeError):
                raise Unavailable(f"vLLM “{self.server.name}” lists no model; name it in settings.toml.") from None
        return self._model

    def _row(self, ids: list[int], layers: tuple[int, ...]) -> tuple[HiddenStates, int | None]:
        """Hidden states of one row at all of its tokens, and the generated token (None if not reported)."""
        body = {"model": self.model, "prompt": ids, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
        answer = self.connection.json("POST", "/v1/completions", len(ids) * JSON_NUMBER_CHARS, json=body)
        path, token = self._file_and_token(answer, ids)
        columns, norm = self._read_file(path, ids, layers), self.base.final_norm
        if norm is None:
            raise Unsupported(f"{type(self.base.model).__name__}: its final norm is unknown; train without a server.")
        with torch.no_grad():
            hidden = norm(columns[:, -1].to(self.base.device, self.base.dtype))
        return HiddenStates(hidden, columns[:, : len(layers)].flatten(1)), token

    def _file_and_token(self, answer: Any, ids: list[int]) -> tuple[Path, int | None]:
        try:
            choice, name = answer["choices"][0], answer["kv_transfer_params"]["hidden_states_path"]
            prompt_ids, chosen, path = choice["prompt_token_ids"], choice.get("token_ids"), Path(name)
            if "\0" in name:
                raise ValueError(name)
        except (KeyError, IndexError, TypeError, ValueError):
            raise BadInput(
                f"vLLM “{self.server.name}” names no file of hidden states.",
                "Start it with extract_hidden_states and ExampleHiddenStatesConnector (docs/training.md).",
            ) from None
        if prompt_ids != ids:
            raise BadInput(f"vLLM “{self.server.name}” read other tokens than it was sent.")
        reported = isinstance(chosen, list) and chosen and type(chosen[0]) is int
        return path, chosen[0] if reported else None

    def _read_file(self, path: Path, ids: list[int], layers: tuple[int, ...]) -> Tensor:
        """Wait for the file, return its hidden states and delete it. The server may name any file: shapes are checked
        first."""
        lock = path.with_name(path.name + ".lock")
        self._wait(lock, path)
        try:
            with safe_open(path, "pt") as tensors:
                ids_shape, shape = (tensors.get_slice(name).get_shape() for name in ("token_ids", "hidden_states"))
                if ids_shape != [len(ids)] or tensors.get_tensor("token_ids").tolist() != ids or shape[:1] != ids_shape:
                    raise BadInput(f"vLLM “{self.server.name}”: {path} holds hidden states of other tokens.")
                self._check_columns(shape, layers)
                states = tensors.get_tensor("hidden_states")
        except FileNotFoundError:
            raise BadInput(
                f"vLLM “{self.server.name}” wrote {path}, which does not exist here.",
                "Its shared_storage_path must be the same folder, at the same path, for server and training.",
            ) from None
        except (OSError, SafetensorError) as error:
            raise TemporarilyUnavailable(f"its file {path.name} cannot be read ({error})") from None
        for file in (path, lock):  # the token ids prove that it is our request's file
            with suppress(OSError):
                file.unlink(missing_ok=True)
        return states

    def _wait(self, lock: Path, path: Path) -> None:
        """Wait until the server releases the lock, which also happens when it exits; without a lock the file is
        complete already (use_synchronization_lock is off)."""
        with suppress(OSError), open(lock, "rb") as handle:
            deadline = time.monotonic() + WRITE_SECONDS
            while True:
                try:
                    return fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        problem = f"it has been writing {path.name} for {WRITE_SECONDS:.0f} s"
                        raise TemporarilyUnavailable(problem) from None
                    time.sleep(POLL_SECONDS)

    def _check_columns(self, shape: list[int], layers: tuple[int, ...]) -> None:
        columns, width = (*shape[1:], 0, 0)[:2]
        max_columns = max(self.base.num_layers, MIN_LAYER_LIMIT) + 1
        if len(shape) != 3 or not 0 < columns <= max_columns or width != self.base.hidden_size:
            raise BadInput(
                f"vLLM “{self.server.name}” sends hidden states of {columns} layers and {width} "
                f"numbers; this base's have {self.base.hidden_size}, of {max_columns} layers at most.",
                "Serve the base model of this training.",
            )
        if layers and columns != len(layers) + 1:
            ids = [*(layer + 1 for layer in layers), self.base.num_layers]
            raise BadInput(
                f"vLLM “{self.server.name}” sends {columns} layers, expected are {len(layers)} and the last.",
                f"Start it with eagle_aux_hidden_state_layer_ids {ids}.",
            )
