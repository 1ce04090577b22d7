"""In nvidia-modelopt's own environment: load an export into the module that its `convert` makes, run it over given
hidden states; then fill that module with other weights, export it with its own exporter, and run it again.

    python modelopt_reads.py BASE EXPORT STATES OUT

STATES holds `aux` [n, 3H], hidden states side by side, and `embedded` [n, H], embeddings of the tokens after them.
Writes OUT/logits.safetensors (`ours`, `own` [n, V'], both by the module as it is released, and `ours_once`, `own_once`
with the first layer's input norm kept to the embeddings), OUT/exported and OUT/said.json. Knows nothing of the
workbench.
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
    """ModelOpt's EAGLE-3 preset in the sizes that the export's config.json says."""
    preset = copy.deepcopy(eagle3_default_config)
    preset.update({name: config[name] for name in (*SIZES, *COUNTS)})
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    layers = config["eagle_config"].get("eagle_aux_hidden_state_layer_ids", [])
    preset.update(rope_scaling=rope, eagle_aux_hidden_state_layer_ids=layers, has_lm_head=True, torch_dtype="float32")
    return preset


class OfEmbeddings(nn.Module):
    """A norm that lets the features pass: what the decoder layer gives it first."""

    def __init__(self, norm: nn.Module, features: Tensor):
        super().__init__()
        self.norm, self.features = norm, features.data_ptr()

    def forward(self, x: Tensor) -> Tensor:
        return x if x.data_ptr() == self.features else self.norm(x)


def logits(model: Any, given: dict[str, Tensor], once: bool) -> Tensor:
    """[n, V'] by the module's own forward."""
    module = model.eagle_module
    features = module.fc(given["aux"])[None]
    module._maybe_init_rope(device=features.device)
    shape = features.shape[:2]
    mask = model._prepare_decoder_attention_mask(None, shape, 0, features.device, features.dtype)
    layer, norm = module.layers[0], module.layers[0].input_layernorm
    layer.input_layernorm = OfEmbeddings(norm, features) if once else norm
    try:
        return model._eagle_forward(features, given["embedded"][None], mask, None)[2][0].contiguous()
    finally:
        layer.input_layernorm = norm


def randomise(module: nn.Module) -> None:
    """Weights wide enough that every part has a say in the logits, norms too."""
    generator = torch.Generator().manual_seed(11)
    for value in module.parameters():
        noise = torch.randn(value.shape, generator=generator)
        value.data = noise * 0.05 if value.dim() > 1 else 1 + noise * 0.2


@torch.no_grad()
def main(base: Path, export: Path, states: Path, out: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    stored, given = load_file(export / "model.safetensors"), load_file(states)
    config = json.loads((export / "config.json").read_text())
    options = {"eagle_architecture_config": architecture(config), "eagle_use_torch_compile": False}
    options["eagle_export_rope_scaling"] = {}  # else its exporter writes another rope than the module has
    mtsp.convert(model, [("eagle", options)])
    module = model.eval().eagle_module
    wrong = module.load_state_dict(stored, strict=False)
    made = {f"ours{end}": logits(model, given, bool(end)) for end in ("", "_once")}
    randomise(module)
    made |= {f"own{end}": logits(model, given, bool(end)) for end in ("", "_once")}
    model.get_exporter().export(out / "exported")
    save_file(made, out / "logits.safetensors")
    said = {
        "version": f"nvidia-modelopt {version('nvidia-modelopt')}, transformers {version('transformers')}",
        "tensors": len(stored),
        "left_over": sorted(wrong.unexpected_keys),
        "unset": sorted(wrong.missing_keys),
    }
    (out / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
