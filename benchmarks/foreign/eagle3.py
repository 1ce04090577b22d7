"""EAGLE-3 here and in speculators: unrolled steps for every combination of EAGLE-3.1's norms, their losses, D-PACE."""

from collections.abc import Iterator
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
from models.chain_attention import ChainBackend
from models.eagle3 import Eagle3Draft
from models.logits import Head
from models.methods import train_config
from training.batches import Batch
from training.eagle import next_tokens
from training.eagle3 import Eagle3Method
from training.losses import dpace_weights, hard_loss, label_losses

STEPS, DECAY, TOKENS = 3, 0.8, 24
LOSSES = ("kl", "reverse_kl", "tv")
WITH_LOSSES = ([], ["norm_before_fc", "norm_output"], ["fc_norm", "norm_output"])
"""The norms whose losses are compared."""


def comparisons(base: LoadedBase, scratch: Path) -> Iterator[Comparison]:
    """On one row that is all answer. Losses only with the whole vocabulary: with a smaller one, speculators also counts
    positions whose most likely token is not in it."""
    ids = torch.randint(0, base.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(2))
    batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([TOKENS]))
    norms, vocabularies = ((), ("norm_before_fc",), ("fc_norm",)), (torch.arange(5, 205), torch.arange(base.vocab_size))
    choices = product(norms, ((), ("norm_output",)), ((), ("norm_before_residual",)), vocabularies)
    for number, (*names, vocabulary) in enumerate(choices):
        options = [*chain(*names)]
        draft = Eagle3Draft.from_base(base, vocabulary, **dict.fromkeys(options, True))
        for direction, ours, theirs in both_ways(draft, base, scratch / str(number)):
            case = f"{', '.join([*options, f'{len(vocabulary)} tokens'])}: {direction}"
            pairs = zip(our_logits(ours, base, batch), their_step(theirs, base, batch)[0], strict=True)
            yield Comparison("eagle3", case, {"logits": largest_difference(*pairs)})
            for kind in LOSSES if options in WITH_LOSSES and len(vocabulary) == base.vocab_size else ():
                config = train_config("eagle3", ttt_loss=kind, ttt_steps=STEPS, ttt_decay=DECAY)
                method = Eagle3Method(config, base, ours)
                features = method.features(batch)
                loss = method(features, scale=torch.tensor(method.weights) / method.counts(features)).loss
                differences = step_differences(ours, theirs, loss, their_step(theirs, base, batch, kind)[1])
                yield Comparison("eagle3", f"{case}, {kind}", differences)
    yield dpace_comparison()


@torch.no_grad()
def our_logits(draft: Eagle3Draft, base: LoadedBase, batch: Batch) -> list[Tensor]:
    """Logits [positions, V'] of each unrolled step, at the positions that have a next token."""
    hidden, aux = base.forward_hidden(batch.input_ids, layers=draft.layers_wanted, lengths=batch.lengths)
    backend, x, logits = ChainBackend(), draft.fuse(hidden, aux), []
    for step in range(STEPS):
        x = draft(x, *next_tokens(batch.input_ids, step), backend)
        logits.append(draft.logits(x)[0, : TOKENS - 1 - step])
    return logits


def their_step(network: Any, base: LoadedBase, batch: Batch, kind: str = "kl") -> tuple[list[Tensor], Tensor]:
    """speculators' logits at the same positions, and its loss."""
    arguments = packed(network, base, batch)
    with outputs_of(network.lm_head) as logits:
        _, loss, _ = network(**arguments, ttt_steps=STEPS, ttt_step_loss_decay=DECAY, loss_config=loss_config(kind))
    return [values[0, : TOKENS - 1 - step] for step, values in enumerate(logits)], loss


def dpace_comparison(blocks: int = 30, size: int = 6, columns: int = 90, alpha: float = 0.5) -> Comparison:
    """Cross-entropy of random blocks with random masks, weighted by D-PACE; the gradient is that of the logits."""
    from speculators.losses import dpace_loss_decay, loss_function
    from speculators.losses.eager import ce_loss

    random = torch.Generator().manual_seed(0)
    logits, targets = (2 * torch.randn(blocks * size, columns, generator=random) for _ in range(2))
    mask = torch.rand(blocks * size, generator=random) < 0.8
    theirs_of, ours_of = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    decay = partial(dpace_loss_decay, loss_mask=mask[None], block_size=size, dpace_alpha=alpha)
    offsets = torch.arange(blocks * size)[None] % size  # within a block
    theirs = loss_function(theirs_of[None], targets[None], mask[None], offsets, ce_loss, decay)

    head, labels = Head(torch.eye(columns)), targets.argmax(-1)
    losses = label_losses(ours_of, head, labels).view(blocks, size)
    weights = dpace_weights(losses, mask.view(blocks, size), alpha).flatten()
    ours = hard_loss(ours_of, head, labels, weights)[0] / mask.sum()
    ours.backward()
    theirs.backward()
    found = {"loss": (ours, theirs), "gradients": (ours_of.grad, theirs_of.grad)}
    return Comparison("eagle3", "D-PACE of random blocks", {k: largest_difference(v) for k, v in found.items()})
