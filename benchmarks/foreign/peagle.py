"""P-EAGLE here and in speculators: one training step on two conversations, with the same rollouts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional as F

from benchmarks.foreign.common import (
    Comparison,
    both_ways,
    largest_difference,
    loss_config,
    outputs_of,
    packed,
    step_differences,
)
from models.base import LoadedBase
from models.methods import train_config
from models.peagle import PEagleDraft
from training.batches import Batch
from training.peagle import PEagleMethod, sample_rollouts

SOME = torch.randperm(320, generator=torch.Generator().manual_seed(1))[:160].sort().values
CASES: dict[str, dict[str, Any]] = {
    "one layer, all tokens": {},
    "two layers, 160 tokens": {"eagle_num_layers": 2, "draft_ids": SOME},
    "norm_before_fc, own embeddings, 160 tokens": {"norm_before_fc": True, "own_embeddings": True, "draft_ids": SOME},
    "norm_before_residual, norm_output": {"norm_before_residual": True, "norm_output": True},
}


def comparisons(base: LoadedBase, scratch: Path) -> Iterator[Comparison]:
    """Logits, loss and gradients of each kind of draft."""
    ids = torch.randint(3, base.vocab_size, (2, 26), generator=torch.Generator().manual_seed(3))
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[0, 6:19] = mask[1, 4:12] = mask[1, 15:26] = True
    batch = Batch(ids, mask, torch.tensor([19, 26]))
    for number, (case, options) in enumerate(CASES.items()):
        draft = PEagleDraft.from_base(base, mask_token_id=7, **options)
        for direction, ours, theirs in both_ways(draft, base, scratch / str(number)):
            yield Comparison("peagle", f"{case}: {direction}", compare(ours, theirs, base, batch))


def compare(draft: PEagleDraft, network: Any, base: LoadedBase, batch: Batch) -> dict[str, float]:
    """Differences of one training step. Losses are compared after subtracting the entropy of the base's distribution
    from ours: a cross-entropy here, a KL divergence there, with the same gradient."""
    from speculators.models.peagle import core

    method = PEagleMethod(train_config("peagle"), base, draft)
    features = method.features(batch)
    reached = features["labels"][features["row"], features["position"]] >= 0
    kept = sample_rollouts(reached, method.ratio, method.least_ratio, torch.Generator().manual_seed(5))
    logits = torch.cat([draft.logits(x) for x in method._rollouts(features, kept)])
    ours = method.loss(features, kept, 1 / kept.sum()[None]).loss

    arguments = packed(network, base, batch)
    depth, number = kept.T.nonzero(as_tuple=True)  # depth by depth, like our logits
    starts = F.pad(batch.lengths - 1, (1, 0)).cumsum(0)  # of the packed conversations
    anchor = (starts[features["row"]] + features["position"])[number]
    # speculators computes every entry at depth 0, since later depths attend to it; prompts do not count
    masked, entries = depth > 0, arguments["input_ids"].shape[1]
    anchors = torch.cat([torch.arange(entries), anchor[masked]])
    depths = torch.cat([torch.zeros(entries, dtype=torch.int64), depth[masked]])
    columns = torch.where(masked, entries + masked.cumsum(0) - 1, anchor)  # of our positions in its output
    with (
        patch.object(core, "generate_cod_sample_indices", lambda **_: (anchors, depths)),
        outputs_of(network.lm_head) as outputs,
        outputs_of(network.verifier_lm_head) as targets,
    ):
        _, theirs, _ = network(**arguments, num_depths=method.depths, loss_config=loss_config("kl"))
    log_p = targets[0][0, anchor + depth].log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1).mean()
    differences = {"logits": largest_difference((logits, outputs[0][0, columns]))}
    return differences | step_differences(draft, network, ours - entropy, theirs)
