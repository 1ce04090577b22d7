"""Runs in speculators' environment: loads an export with `from_pretrained` and runs its layers on hidden states.

    python speculators_reads.py EXPORT STATES OUT

STATES contains `aux` [n, 3H], concatenated hidden states, and `embedded` [n, H], embeddings of the next tokens.
Writes OUT/logits.safetensors [n, V'] and OUT/said.json. Does not import this project.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from speculators.models.eagle3.core import Eagle3DraftModel

FROM_BASE = {"embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
"""Tensors that speculators loads from the base model."""


@torch.no_grad()
def main(export: Path, states: Path, out: Path) -> None:
    model = Eagle3DraftModel.from_pretrained(str(export), dtype=torch.float32).eval()
    model.config.transformer_layer_config._attn_implementation = "eager"
    stored, own, inputs = load_file(export / "model.safetensors"), model.state_dict(), load_file(states)
    features = model.fc(inputs["aux"])[None]
    hidden = torch.cat([inputs["embedded"][None], features], -1)
    positions = torch.arange(hidden.shape[1])[None]
    mask = torch.full((hidden.shape[1],) * 2, float("-inf")).triu(1)[None, None]
    rotary = model.rotary_emb(hidden, positions)
    for layer in model.layers:
        output = layer(hidden, attention_mask=mask, position_ids=positions, position_embeddings=rotary)
        hidden = output[0] if isinstance(output, tuple) else output
    save_file({"logits": model.lm_head(model.norm(hidden))[0].contiguous()}, out / "logits.safetensors")
    changed = [name for name in stored if name in own and not torch.equal(own[name], stored[name].to(own[name].dtype))]
    report = {
        "version": f"speculators {version('speculators')}, transformers {version('transformers')}",
        "tensors": len(stored),
        "left_over": sorted(stored.keys() - own.keys()),
        "unset": sorted(own.keys() - stored.keys() - FROM_BASE) + changed,
    }
    (out / "said.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
