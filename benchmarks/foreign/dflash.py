"""DFlash here, in speculators and in z-lab's own code: logits of the same blocks, and the losses of one step."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.foreign.common import (
    Comparison,
    base_states,
    both_ways,
    export,
    largest_difference,
    loss_config,
    outputs_of,
    randomize,
    step_differences,
)
from models.base import LoadedBase
from models.block_attention import BlockBackend
from models.dflash import DFlashDraft
from models.methods import train_config
from training.batches import Batch
from training.dflash import DFlashMethod

CASES: dict[str, dict[str, Any]] = {
    "blocks of 5": {"dflash_num_layers": 2, "block_size": 5},
    "blocks of 8, other layers": {"dflash_num_layers": 1, "block_size": 8, "aux_layers": (0, 2, 6), "mask_token_id": 7},
    "blocks of 4, 159 tokens": {"dflash_num_layers": 3, "block_size": 4, "draft_ids": torch.arange(3, 320, 2)},
}
LOSSES = (("ce", "decay"), ("kl", "decay"), ("reverse_kl", "decay"), ("ce", "dpace"))
WEIGHTS = {"decay": "fixed-exp-decay", "dpace": "dpace"}
"""{our name of the weights of positions: speculators' name}."""
LENGTH, PROMPT = 60, 12


def comparisons(base: LoadedBase, scratch: Path) -> Iterator[Comparison]:
    """Losses are compared with the whole vocabulary: with a smaller one, speculators also counts tokens outside it."""
    batch = greedy_batch(base)
    for number, (case, options) in enumerate(CASES.items()):
        draft = DFlashDraft.from_base(base, **options)
        anchors = torch.arange(PROMPT, LENGTH - draft.block_size, 3)  # speculators needs whole blocks
        for direction, ours, theirs in both_ways(draft, base, scratch / str(number)):
            name = f"{case}: {direction}"
            expected, _ = their_step(theirs, base, batch, anchors)
            logits = our_logits(ours, base, batch, anchors).flatten(0, 1)
            yield Comparison("dflash", name, {"logits": largest_difference((logits, expected))})
            for kind, weights in LOSSES if ours.lm_head is None else ():
                config = train_config("dflash", dflash_loss=kind, position_weights=weights)
                method = DFlashMethod(config, base, ours)
                features = method.features(batch)
                features["chosen"] = torch.isin(features["position"] + 1, anchors).nonzero()[:, 0]
                loss = method(features, scale=1 / method.counts(features)).loss
                _, other = their_step(theirs, base, batch, anchors, kind, weights)
                differences = step_differences(ours, theirs, loss, other)
                yield Comparison("dflash", f"{name}, {kind}, {weights}", differences)


def greedy_batch(base: LoadedBase) -> Batch:
    """A prompt and the base's greedy answer: speculators' labels are the base's most likely tokens."""
    prompt = torch.randint(5, base.vocab_size, (1, PROMPT), generator=torch.Generator().manual_seed(1))
    ids = base.model.generate(prompt, max_new_tokens=LENGTH - PROMPT, do_sample=False, eos_token_id=None)
    return Batch(ids, torch.arange(LENGTH)[None] >= PROMPT, torch.tensor([LENGTH]))


@torch.no_grad()
def our_logits(draft: DFlashDraft, base: LoadedBase, batch: Batch, anchors: Tensor) -> Tensor:
    """[blocks, block size, columns]"""
    _, aux = base.forward_hidden(batch.input_ids, layers=draft.layers_wanted, lengths=batch.lengths)
    positions = anchors[:, None] + torch.arange(draft.block_size)
    context = draft.fuse(torch.cat(aux, -1)), torch.arange(LENGTH)[None]
    blocks = draft.block_ids(batch.input_ids[0, anchors])
    return draft.logits(draft(blocks, positions, BlockBackend(torch.zeros_like(anchors), anchors, 1), context))


def their_step(
    network: Any, base: LoadedBase, batch: Batch, anchors: Tensor, kind: str = "ce", weights: str = "decay"
) -> tuple[Tensor, Tensor]:
    """speculators' logits [blocks · block size, columns] of blocks at `anchors`, and its loss."""
    from speculators.models.dflash import core

    aux, last = base_states(network, base, batch)
    with (
        patch.object(core, "select_anchors", lambda *_: (anchors, torch.ones_like(anchors, dtype=torch.bool))),
        outputs_of(network.lm_head) as logits,
    ):
        _, loss, _ = network(
            hidden_states=aux,
            input_ids=batch.input_ids,
            loss_mask=batch.mask.float(),
            verifier_last_hidden_states=last,
            document_ids=torch.zeros_like(batch.input_ids),
            loss_config=loss_config(kind),
            max_anchors=len(anchors),
            per_position_loss_weight=WEIGHTS[weights],
        )
    return logits[0][0], loss


@torch.no_grad()
def zlab_comparison(file: Path, base: LoadedBase, scratch: Path) -> Comparison:
    """The network in z-lab's dflash/model.py, with the files of our export for SGLang, which has its layout."""
    draft, batch = DFlashDraft.from_base(base, **next(iter(CASES.values()))), greedy_batch(base)
    randomize(draft, draft, seed=1)
    folder = export(draft, base, "sglang", scratch)
    network_class = runpy.run_path(str(file))["DFlashDraftModel"]
    network = network_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    _, aux = base.forward_hidden(batch.input_ids, layers=network.target_layer_ids, lengths=batch.lengths)
    pairs = []
    for anchor in (PROMPT, PROMPT + 9, LENGTH - 2):
        x = network(
            target_hidden=torch.cat(aux, -1)[:, :anchor],
            noise_embedding=base.embed_tokens(draft.block_ids(batch.input_ids[0, anchor, None])),
            position_ids=torch.arange(anchor + draft.block_size)[None],
            is_causal=False,
        )
        pairs.append((our_logits(draft, base, batch, torch.tensor([anchor])), base.logits(x)))
    return Comparison("dflash", "ours, read by z-lab", {"logits": largest_difference(*pairs)})
