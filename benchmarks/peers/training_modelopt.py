"""nvidia-modelopt as a contender: `modelopt.torch.speculative.convert` and its own loss, on a CPU.

Differences from its defaults: the draft layer has the sizes and the rotary base of the base model; the last norm is on,
as in its EAGLE-3 preset; torch.compile is off (it recompiles for each batch width); the base model is frozen for
Medusa, which `convert` does not do. Batches are padded to their longest row. ModelOpt's collator pads all batches to
one length and caches one mask per unrolled step, so this cache is cleared here.
"""

import copy
import importlib.metadata
from typing import Any

import modelopt.torch.speculative as mtsp
import torch
from common import padded, read_in_answer, serve_trainer
from modelopt.torch.speculative.config import eagle3_default_config
from transformers import AutoModelForCausalLM

IGNORED = -100


class ModelOptSide:
    """A converted model; only the modules that ModelOpt adds are trained."""

    def __init__(self, options: dict[str, Any], plan: dict[str, Any]):
        settings = plan["settings"]
        self.eagle = options["method"] == "eagle3"
        self.model = AutoModelForCausalLM.from_pretrained(options["base"], dtype=torch.float32)
        names = ("nvidia-modelopt", "transformers")
        self.versions = {name: importlib.metadata.version(name) for name in names}
        if self.eagle:
            mtsp.convert(self.model, [("eagle", eagle_config(self.model.config, settings))])
        else:
            heads = {"medusa_num_heads": settings["medusa_heads"], "medusa_num_layers": settings["medusa_layers"]}
            mtsp.convert(self.model, [("medusa", heads)])
        part = "eagle_module" if self.eagle else "medusa_heads"
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and part in name)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.model.train()

    def loss(self, rows: list[Any]) -> torch.Tensor:
        ids, answer, real = padded(rows)
        if self.eagle:
            self.model._cached_attn_blk_masks.clear()
            mask = read_in_answer(answer)
            return self.model(input_ids=ids, attention_mask=real.long(), loss_mask=mask.long()).loss
        labels = torch.full_like(ids, IGNORED)
        labels[:, :-1] = torch.where(answer[:, 1:], ids[:, 1:], IGNORED)  # shifted, as in its collator
        return self.model(input_ids=ids, attention_mask=real.long(), labels=labels).loss

    def weights(self) -> dict[str, torch.Tensor]:
        prefix = "eagle_module." if self.eagle else "medusa_heads."
        state = self.model.state_dict()
        return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def eagle_config(base: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """ModelOpt's EAGLE-3 preset with the sizes of `base`."""
    theta = base.rope_parameters["rope_theta"]
    preset = copy.deepcopy(eagle3_default_config)
    preset.update(
        intermediate_size=base.intermediate_size,
        num_attention_heads=base.num_attention_heads,
        num_key_value_heads=base.num_key_value_heads,
        head_dim=base.head_dim,
        rms_norm_eps=base.rms_norm_eps,
        rope_theta=theta,
        rope_scaling={"rope_type": "default", "rope_theta": theta},
        torch_dtype="float32",
    )
    return {
        "eagle_architecture_config": preset,
        "eagle_ttt_steps": settings["ttt_steps"],
        "eagle_loss_decay_factor": settings["ttt_decay"],
        "eagle_use_torch_compile": False,
    }


if __name__ == "__main__":
    serve_trainer(ModelOptSide)
