"""Tensors and config of P-EAGLE for vLLM's parallel drafting and for speculators: EAGLE-3's, `mask_hidden` and the mask
token."""

from dataclasses import replace

from formats.checkpoint import CheckpointFiles
from tests.formats.table import FLOAT, TensorTable
from tests.formats.tables import eagle3


def vllm(checkpoint: CheckpointFiles) -> TensorTable:
    """Eagle3LlamaForCausalLM with `parallel_drafting`."""
    return _with_mask(eagle3.vllm(checkpoint), checkpoint)


def speculators(checkpoint: CheckpointFiles) -> TensorTable:
    """PEagleDraftModel."""
    table = _with_mask(eagle3.speculators(checkpoint), checkpoint)
    names = {"architectures": ["PEagleDraftModel"], "speculators_model_type": "peagle", "embed_requires_grad": True}
    algorithm = {"speculators_config": {**table.config["speculators_config"], "algorithm": "peagle"}}
    return replace(table, config={**table.config, **names, **algorithm})


def _with_mask(table: TensorTable, checkpoint: CheckpointFiles) -> TensorTable:
    """Servers do not read `num_depths`; imports do."""
    width = checkpoint.hidden_size * len(checkpoint.aux_layers)
    return replace(
        table,
        tensors={**table.tensors, "mask_hidden": ((1, 1, width), FLOAT)},
        config={**table.config, "mask_token_id": 3, "num_depths": checkpoint.config["num_depths"]},
    )
