"""Client of SGLang with --enable-return-hidden-states: /generate returns the head's input as lists of numbers.

Other layers cannot be requested, so it serves EAGLE-1, Medusa and distilled standalone drafts. `hidden_states` of a
response is a list: first those of the whole prompt [tokens][H], then those of each generated token.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from speculoos.errors import BadInput, Unsupported
from training.hidden_states.engines import JSON_NUMBER_CHARS, EngineAnswer, EngineClient, first_generated_token


class SglangClient(EngineClient):
    def check(self, rows: Sequence[Tensor]) -> str:
        return f"Hidden states come from SGLang “{self.server.name}”: {self.check_tokens(rows)}."

    def row(self, ids: list[int], layers: tuple[int, ...]) -> EngineAnswer:
        if layers:
            raise Unsupported(
                f"hidden_states: SGLang “{self.server.name}” sends only the last layer's output, so an EAGLE-3 draft "
                "cannot learn from it; use vLLM or the project's own server."
            )
        body = {
            "input_ids": ids,
            "sampling_params": {"temperature": 0.0, "max_new_tokens": 1},
            "return_hidden_states": True,
        }
        max_bytes = (len(ids) + 1) * self.base.hidden_size * JSON_NUMBER_CHARS  # + 1: the generated token's
        answer = self.connection.post_json("/generate", body, max_bytes)
        hidden = self._prompt_states(answer, ids)
        return EngineAnswer(hidden, hidden.new_zeros(len(ids), 0), first_generated_token(answer.get("output_ids")))

    def _prompt_states(self, answer: Any, ids: list[int]) -> Tensor:
        try:
            hidden = torch.tensor(answer["meta_info"]["hidden_states"][0], dtype=torch.float32)
        except (KeyError, IndexError, TypeError, ValueError):
            raise BadInput(
                f"SGLang “{self.server.name}” sends no hidden states.", "Start it with --enable-return-hidden-states."
            ) from None
        if hidden.shape != (len(ids), self.base.hidden_size):
            raise BadInput(
                f"SGLang “{self.server.name}” sent hidden states {list(hidden.shape)}; expected are "
                f"{[len(ids), self.base.hidden_size]}.",
                "Start it with --disable-radix-cache and --chunked-prefill-size -1, without speculative decoding.",
            )
        return hidden
