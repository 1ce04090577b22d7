"""In speculators' own environment: read an export by `from_pretrained`, run its own layers over given hidden states.

    python speculators_reads.py EXPORT STATES OUT

STATES holds `aux` [n, 3H], hidden states side by side, and `embedded` [n, H], embeddings of the tokens after them.
Writes OUT/logits.safetensors [n, V'] and OUT/said.json. Knows nothing of the workbench.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from speculators.models.eagle3.core import Eagle3DraftModel

BORROWED = {"embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
"""What speculators takes from the base."""


@torch.no_grad()
def main(export: Path, states: Path, out: Path) -> None:
    model = Eagle3DraftModel.from_pretrained(str(export), dtype=torch.float32).eval()
    model.config.transformer_layer_config._attn_implementation = "eager"
    stored, own, given = load_file(export / "model.safetensors"), model.state_dict(), load_file(states)
    features = model.fc(given["aux"])[None]
    hidden = torch.cat([given["embedded"][None], features], -1)
    places = torch.arange(hidden.shape[1])[None]
    mask = torch.full((hidden.shape[1],) * 2, float("-inf")).triu(1)[None, None]
    turns = model.rotary_emb(hidden, places)
    for layer in model.layers:
        output = layer(hidden, attention_mask=mask, position_ids=places, position_embeddings=turns)
        hidden = output[0] if isinstance(output, tuple) else output
    save_file({"logits": model.lm_head(model.norm(hidden))[0].contiguous()}, out / "logits.safetensors")
    changed = [name for name in stored if name in own and not torch.equal(own[name], stored[name].to(own[name].dtype))]
    said = {
        "version": f"speculators {version('speculators')}, transformers {version('transformers')}",
        "tensors": len(stored),
        "left_over": sorted(stored.keys() - own.keys()),
        "unset": sorted(own.keys() - stored.keys() - BORROWED) + changed,
    }
    (out / "said.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
