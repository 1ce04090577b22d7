"""Runs in nvidia-modelopt's environment: loads an export into the module that `convert` creates and runs it on hidden
states; then sets random weights, exports the module with ModelOpt's exporter, and runs it again.

    python modelopt_reads.py BASE EXPORT STATES OUT

STATES contains `aux` [n, 3H], concatenated hidden states, and `embedded` [n, H], embeddings of the next tokens.
Writes OUT/logits.safetensors (`ours`, `own` [n, V'] from the released module; `ours_once`, `own_once` with the first
layer's input norm applied to the embeddings only), OUT/exported and OUT/said.json. Does not import this project.
"""

import copy
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import modelopt.torch.speculative as mtsp
import torch
from modelopt.torch.speculative.config import eagle3_default_config
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

SIZES = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta")
COUNTS = ("num_hidden_layers", "draft_vocab_size")


def architecture(config: dict[str, Any]) -> dict[str, Any]:
    """ModelOpt's EAGLE-3 preset with the sizes of the export's config.json."""
    preset = copy.deepcopy(eagle3_default_config)
    preset.update({name: config[name] for name in (*SIZES, *COUNTS)})
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    layers = config["eagle_config"].get("eagle_aux_hidden_state_layer_ids", [])
    preset.update(rope_scaling=rope, eagle_aux_hidden_state_layer_ids=layers, has_lm_head=True, torch_dtype="float32")
    return preset


class OfEmbeddings(nn.Module):
    """A norm that returns the features unchanged, to skip their second normalisation in the decoder layer."""

    def __init__(self, norm: nn.Module, features: Tensor):
        super().__init__()
        self.norm, self.features = norm, features.data_ptr()

    def forward(self, x: Tensor) -> Tensor:
        return x if x.data_ptr() == self.features else self.norm(x)


def logits(model: Any, inputs: dict[str, Tensor], once: bool) -> Tensor:
    """Logits [n, V'] of the module's own forward pass."""
    module = model.eagle_module
    features = module.fc(inputs["aux"])[None]
    module._maybe_init_rope(device=features.device)
    shape = features.shape[:2]
    mask = model._prepare_decoder_attention_mask(None, shape, 0, features.device, features.dtype)
    layer, norm = module.layers[0], module.layers[0].input_layernorm
    layer.input_layernorm = OfEmbeddings(norm, features) if once else norm
    try:
        return model._eagle_forward(features, inputs["embedded"][None], mask, None)[2][0].contiguous()
    finally:
        layer.input_layernorm = norm


def randomise(module: nn.Module) -> None:
    """Random weights, large enough that every part affects the logits; norms too."""
    generator = torch.Generator().manual_seed(11)
    for value in module.parameters():
        noise = torch.randn(value.shape, generator=generator)
        value.data = noise * 0.05 if value.dim() > 1 else 1 + noise * 0.2


@torch.no_grad()
def main(base: Path, export: Path, states: Path, out: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    stored, inputs = load_file(export / "model.safetensors"), load_file(states)
    config = json.loads((export / "config.json").read_text())
    options = {"eagle_architecture_config": architecture(config), "eagle_use_torch_compile": False}
    options["eagle_export_rope_scaling"] = {}  # otherwise the exported RoPE config differs from the module
    mtsp.convert(model, [("eagle", options)])
    module = model.eval().eagle_module
    keys = module.load_state_dict(stored, strict=False)
    made = {f"ours{end}": logits(model, inputs, bool(end)) for end in ("", "_once")}
    randomise(module)
    made |= {f"own{end}": logits(model, inputs, bool(end)) for end in ("", "_once")}
    model.get_exporter().export(out / "exported")
    save_file(made, out / "logits.safetensors")
    report = {
        "version": f"nvidia-modelopt {version('nvidia-modelopt')}, transformers {version('transformers')}",
        "tensors": len(stored),
        "left_over": sorted(keys.unexpected_keys),
        "unset": sorted(keys.missing_keys),
    }
    (out / "said.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
