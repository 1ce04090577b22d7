"""A stand-in for vLLM's server: its responses and its files, computed by transformers alone with a tiny base. Written
after the sources of vLLM's ExampleHiddenStatesConnector and speculators' client; vLLM itself does not run here.
"""

import fcntl
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from models.base import LoadedBase
from speculoos.settings import HiddenStatesServer
from tests.tools.local_server import Handler, serving


class StandIn:
    """A server on a free port; subclasses answer the requests."""

    kind = ""

    def __init__(self, base: LoadedBase, key: str = ""):
        self.base, self.key, self.requests = base, key, []
        self._lock = threading.Lock()

    def server(self, **options: Any) -> HiddenStatesServer:
        return HiddenStatesServer("engine", self.url, kind=self.kind, **options)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        raise NotImplementedError

    def run(self, ids: list[int]) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor, int]:
        """The inputs of each layer; the output of the last; the input of the head; the greedy next token. Rows run one
        after the other, because hooks of two at once would see each other's forwards."""
        last_outputs: list[torch.Tensor] = []
        with self._lock:
            hook = self.base.final_norm.register_forward_pre_hook(lambda _, inputs: last_outputs.append(inputs[0][0]))
            try:
                with torch.no_grad():
                    out = self.base.model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
            finally:
                hook.remove()
        return (
            [h[0] for h in out.hidden_states[:-1]],
            last_outputs[0],
            out.hidden_states[-1][0],
            int(out.logits[0, -1].argmax()),
        )

    def __enter__(self) -> Any:
        self._serving = serving(type("Bound", (StandInHandler,), {"stand_in": self}))
        self.url = self._serving.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._serving.__exit__(*error)


class StandInHandler(Handler):
    stand_in: StandIn

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(self.read_json())

    def _answer(self, body: dict[str, Any]) -> None:
        key = self.stand_in.key
        if key and self.headers.get("authorization") != f"Bearer {key}":
            self.send_json(401, {"error": {"message": "Unauthorized", "type": "x", "code": 401}})
        else:
            self.stand_in.requests.append((self.path, body))
            self.send_json(*self.stand_in.answer(self.path, body))


class VllmStandIn(StandIn):
    """/v1/completions returns the file's name at once; the file follows a moment later, under an exclusive lock."""

    kind = "vllm"

    def __init__(
        self, base: LoadedBase, folder: Path, layer_ids: list[int], dtype: torch.dtype = torch.float32, **options: Any
    ):
        self.folder, self.layer_ids, self.dtype, self.reported_folder = folder, layer_ids, dtype, folder
        folder.mkdir(exist_ok=True)
        super().__init__(base, **options)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 512}]}
        assert path == "/v1/completions" and body["max_tokens"] == 1 and body["return_token_ids"] is True
        if body["model"] != "tiny":
            return 404, {"error": {"message": "The model does not exist.", "type": "NotFoundError", "code": 404}}
        ids, name = body["prompt"], f"cmpl-{len(self.requests)}-{threading.get_ident()}-0.safetensors"
        token = self._write_states(ids, self.folder / name)
        choice = {"index": 0, "text": "x", "finish_reason": "length", "prompt_token_ids": ids, "token_ids": [token]}
        transfer = {"hidden_states_path": str(self.reported_folder / name)}
        return 200, {"id": "cmpl-1", "object": "text_completion", "choices": [choice], "kv_transfer_params": transfer}

    def _write_states(self, ids: list[int], path: Path) -> int:
        inputs, last_output, _, token = self.run(ids)
        columns = [last_output if i == self.base.num_layers else inputs[i] for i in self.layer_ids]
        tensors = {"hidden_states": torch.stack(columns, 1).to(self.dtype), "token_ids": torch.tensor(ids)}
        lock = os.open(f"{path}.lock", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX)

        def write() -> None:
            time.sleep(0.05)
            save_file(tensors, path)
            os.close(lock)

        threading.Thread(target=write).start()
        return token
