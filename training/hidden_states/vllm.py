"""Client of vLLM with `extract_hidden_states` and its ExampleHiddenStatesConnector, started as speculators does: the
response to a completion names a safetensors file in a shared folder, which is locked while it is written.

The file holds `hidden_states` [tokens, columns, H] and `token_ids`. For the layer ids the server was started with, a
column is the *input* of layer i (our 0-based output i − 1), before any norm; the last one is the last layer's output.
"""

import fcntl
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from speculoos.errors import BadInput, Unavailable
from speculoos.settings import HiddenStatesServer
from training.hidden_states.client import TemporarilyUnavailable
from training.hidden_states.engines import JSON_NUMBER_CHARS, EngineAnswer, EngineClient, first_generated_token
from training.hidden_states.request import MIN_LAYER_LIMIT

WRITE_SECONDS = 60.0
POLL_SECONDS = 0.02


class VllmClient(EngineClient):
    """Requests a completion of one token for each row; reads and removes the file in the shared folder."""

    def __init__(self, server: HiddenStatesServer, base: Any):
        super().__init__(server, base)
        self._model = server.model

    def check(self, rows: Sequence[Tensor]) -> str:
        verdict = self.check_tokens(rows)
        return f"Hidden states come from vLLM “{self.server.name}”, which runs {self.model}: {verdict}."

    @property
    def model(self) -> str:
        if not self._model:
            models = self.connection.get("/v1/models")
            try:
                self._model = models["data"][0]["id"]
            except (KeyError, IndexError, TypeError):
                raise Unavailable(f"vLLM “{self.server.name}” lists no model; name it in settings.toml.") from None
        return self._model

    def row(self, ids: list[int], layers: tuple[int, ...]) -> EngineAnswer:
        body = {"model": self.model, "prompt": ids, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
        answer = self.connection.post_json("/v1/completions", body, len(ids) * JSON_NUMBER_CHARS)
        path, token = self._file_and_token(answer, ids)
        columns = self._read_file(path, ids, layers)
        hidden = self.normed(columns[:, -1])
        return EngineAnswer(hidden, columns[:, : len(layers)].flatten(1), token)

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
        return path, first_generated_token(chosen)

    def _read_file(self, path: Path, ids: list[int], layers: tuple[int, ...]) -> Tensor:
        """Wait for the file, return its hidden states and delete it. Shapes are checked before anything is loaded,
        since the server may name any file."""
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
        """Wait until the server releases the lock, which also happens when it exits."""
        try:
            handle = os.open(lock, os.O_RDONLY)
        except OSError:
            return  # use_synchronization_lock is off: the file is complete already
        try:
            deadline = time.monotonic() + WRITE_SECONDS
            while not _locked(handle):
                if time.monotonic() > deadline:
                    raise TemporarilyUnavailable(f"it has been writing {path.name} for {WRITE_SECONDS:.0f} s")
                time.sleep(POLL_SECONDS)
        finally:
            os.close(handle)

    def _check_columns(self, shape: list[int], layers: tuple[int, ...]) -> None:
        """Raise BadInput for hidden states of another base model, or of more layers than any training requests."""
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


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
