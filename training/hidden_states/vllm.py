"""vLLM with `extract_hidden_states` and its ExampleHiddenStatesConnector, as speculators starts it: the answer to a
completion names a safetensors file in a shared folder, locked while it is written.

The file holds `hidden_states` [tokens, columns, H] and `token_ids`. A column is what goes *into* layer i of the ids the
server was started with (so our 0-based output i − 1), before any norm; the last one is what leaves the last layer.
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
from speculoos.settings import StateServer
from training.hidden_states.client import Away
from training.hidden_states.engines import WRITTEN_NUMBER, EngineAnswer, EngineClient, chosen_of
from training.hidden_states.request import FEW_LAYERS

WRITE_SECONDS = 60.0
LOOK = 0.02


class VllmClient(EngineClient):
    """A completion of one token for each row; what it leaves in the shared folder is read and removed."""

    def __init__(self, server: StateServer, base: Any):
        super().__init__(server, base)
        self._model = server.model

    def check(self, rows: Sequence[Tensor]) -> str:
        said = self.check_tokens(rows)
        return f"Hidden states come from vLLM “{self.server.name}”, which runs {self.model}: {said}."

    @property
    def model(self) -> str:
        """What the server calls the model."""
        if not self._model:
            listed = self.connection.get("/v1/models")
            try:
                self._model = listed["data"][0]["id"]
            except (KeyError, IndexError, TypeError):
                raise Unavailable(f"vLLM “{self.server.name}” lists no model; give it in settings.toml.") from None
        return self._model

    def row(self, ids: list[int], layers: tuple[int, ...]) -> EngineAnswer:
        body = {"model": self.model, "prompt": ids, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
        answer = self.connection.post_json("/v1/completions", body, len(ids) * WRITTEN_NUMBER)
        path, token = self._told(answer, ids)
        columns = self._taken(path, ids, layers)
        hidden = self.normed(columns[:, -1])
        return EngineAnswer(hidden, columns[:, : len(layers)].flatten(1), token)

    def _told(self, answer: Any, ids: list[int]) -> tuple[Path, int | None]:
        """The file's path and the token it chose."""
        try:
            choice, moved = answer["choices"][0], answer["kv_transfer_params"]["hidden_states_path"]
            read, chosen, path = choice["prompt_token_ids"], choice.get("token_ids"), Path(moved)
            if "\0" in moved:
                raise ValueError(moved)
        except (KeyError, IndexError, TypeError, ValueError):
            raise BadInput(
                f"vLLM “{self.server.name}” names no file of hidden states.",
                "Start it with extract_hidden_states and ExampleHiddenStatesConnector (docs/training.md).",
            ) from None
        if read != ids:
            raise BadInput(f"vLLM “{self.server.name}” read other tokens than it was sent.")
        return path, chosen_of(chosen)

    def _taken(self, path: Path, ids: list[int], layers: tuple[int, ...]) -> Tensor:
        """The file's hidden states, once it is written; the file goes. Nothing else of the file is loaded, and nothing
        before its sizes are what they can be: the server may name any."""
        lock = path.with_name(path.name + ".lock")
        self._wait(lock, path)
        try:
            with safe_open(path, "pt") as tensors:
                read, shape = (tensors.get_slice(name).get_shape() for name in ("token_ids", "hidden_states"))
                if read != [len(ids)] or tensors.get_tensor("token_ids").tolist() != ids or shape[:1] != read:
                    raise BadInput(f"vLLM “{self.server.name}”: {path} holds hidden states of other tokens.")
                self._check_columns(shape, layers)
                states = tensors.get_tensor("hidden_states")
        except FileNotFoundError:
            raise BadInput(
                f"vLLM “{self.server.name}” wrote {path}, which is not there for us.",
                "Its shared_storage_path must be the same folder, at the same path, for server and training.",
            ) from None
        except (OSError, SafetensorError) as error:
            raise Away(f"its file {path.name} cannot be read ({error})") from None
        for file in (path, lock):  # ours, as its tokens prove
            with suppress(OSError):
                file.unlink(missing_ok=True)
        return states

    def _wait(self, lock: Path, path: Path) -> None:
        """Until the server has let go of the lock; it also does when it dies."""
        try:
            handle = os.open(lock, os.O_RDONLY)
        except OSError:
            return  # use_synchronization_lock is off: the file is there already
        try:
            deadline = time.monotonic() + WRITE_SECONDS
            while not _locked(handle):
                if time.monotonic() > deadline:
                    raise Away(f"it has been writing {path.name} for {WRITE_SECONDS:.0f} s")
                time.sleep(LOOK)
        finally:
            os.close(handle)

    def _check_columns(self, shape: list[int], layers: tuple[int, ...]) -> None:
        """Raises BadInput for another base's, and for more than any training asks."""
        columns, width = (*shape[1:], 0, 0)[:2]
        most = max(self.base.num_layers, FEW_LAYERS) + 1
        if len(shape) != 3 or not 0 < columns <= most or width != self.base.hidden_size:
            raise BadInput(
                f"vLLM “{self.server.name}” sends hidden states of {columns} layers and {width} "
                f"numbers; this base's have {self.base.hidden_size}, of {most} layers at most.",
                "Serve the base that is trained for.",
            )
        if layers and columns != len(layers) + 1:
            ids = [*(layer + 1 for layer in layers), self.base.num_layers]
            raise BadInput(
                f"vLLM “{self.server.name}” sends {columns} layers, wanted are {len(layers)} and the last.",
                f"Start it with eagle_aux_hidden_state_layer_ids {ids}.",
            )


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
