"""speculators as a contender: its EAGLE-3 model and loss, on a CPU.

Its own pipeline gets hidden states from a vLLM server; here the frozen base model runs in the same process with
transformers, as part of each step. Rows are packed without padding, as in speculators. Attention and losses are eager,
as the defaults need torch.compile on a GPU.
"""

import importlib.metadata
from typing import Any

import torch
from common import padded, read_in_answer, serve_trainer
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from speculators.train.cli import create_transformer_layer_config
from transformers import AutoModelForCausalLM

ATTENTION = "eager"


class SpeculatorsSide:
    """Its draft model with a frozen base model."""

    def __init__(self, options: dict[str, Any], plan: dict[str, Any]):
        settings = plan["settings"]
        if options["method"] != "eagle3":
            raise SystemExit("speculators trains no Medusa heads.")
        names = ("speculators", "transformers")
        self.versions = {name: importlib.metadata.version(name) for name in names}
        self.base = AutoModelForCausalLM.from_pretrained(options["base"], dtype=torch.float32).eval()
        self.base.requires_grad_(False)
        longest = self.base.config.max_position_embeddings
        layer = create_transformer_layer_config(options["base"], 1, "llama", None, longest, [0])
        self.draft = Eagle3DraftModel.from_training_args(
            layer,
            verifier_name_or_path=options["base"],
            draft_vocab_size=self.base.config.vocab_size,
            norm_before_residual=False,
            ttt_steps=settings["ttt_steps"],
            draft_attn_impl=ATTENTION,
        ).train()
        self.options = {
            "ttt_steps": settings["ttt_steps"],
            "ttt_step_loss_decay": settings["ttt_decay"],
            "loss_config": resolve_loss_config("kl_div", "eager"),
        }
        self.parameters = [p for p in self.draft.parameters() if p.requires_grad]

    def loss(self, rows: list[Any]) -> torch.Tensor:
        ids, answer, real = padded(rows)
        aux, last = self._hidden(ids)
        counted = read_in_answer(answer)
        parts = [
            shift_batch(
                {
                    "input_ids": ids[i, :n],
                    "hidden_states": aux[i, :n],
                    "verifier_last_hidden_states": last[i, :n],
                    "loss_mask": counted[i, :n],
                    "lengths": torch.tensor([n]),
                    "position_ids": torch.arange(n),
                }
            )
            for i, n in enumerate(real.sum(1).tolist())
        ]
        names = ("input_ids", "hidden_states", "verifier_last_hidden_states", "loss_mask", "position_ids")
        packed = {name: torch.cat([part[name] for part in parts])[None] for name in names}
        lengths = torch.cat([part["lengths"] for part in parts])
        documents = torch.arange(len(rows)).repeat_interleave(lengths)[None]
        _, loss, _ = self.draft(**packed, document_ids=documents, **self.options)
        return loss

    @torch.no_grad()
    def _hidden(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of the fused layers [B, L, 3H], and the input of the final norm [B, L, H]."""
        last: list[torch.Tensor] = []
        hook = self.base.model.norm.register_forward_pre_hook(lambda _module, inputs: last.append(inputs[0]))
        try:
            out = self.base.model(ids, output_hidden_states=True, use_cache=False)
        finally:
            hook.remove()
        return torch.cat([out.hidden_states[i] for i in self.draft.target_layer_ids], -1), last[0]

    def weights(self) -> dict[str, torch.Tensor]:
        from_base = ("embed_tokens.", "verifier_", "t2d", "d2t")
        return {name: t for name, t in self.draft.state_dict().items() if not name.startswith(from_base)}


if __name__ == "__main__":
    serve_trainer(SpeculatorsSide)
