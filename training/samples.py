"""Sample generations during training with the current draft, token by token."""

from typing import Any

import torch
from torch import Tensor

from decoding.drafters import make_drafter
from decoding.drafters.eagle import GPU_TREE
from decoding.generate import GenerateConfig, generate
from decoding.stats import summarize
from decoding.target import Target, usable_length
from decoding.text import TextStream
from models.checkpoints import draft_class
from training.batches import TokenisedConversation
from training.sharding import draft_tensors

TOKENS = 48


def can_be_sampled(base: Any, conversation: TokenisedConversation) -> bool:
    """Whether the engine can answer the conversation's first prompt: there is one, and it fits the base."""
    return 0 < int(conversation.mask.nonzero()[0]) < usable_length(base)


@torch.no_grad()
def sample(
    base: Any, draft: Any, conversation: TokenisedConversation, tensors: dict[str, Tensor] | None = None
) -> dict[str, Any]:
    """Answer the conversation's first prompt greedily: {"prompt", "text", "tokens", "mean_accepted_length"}.

    `tensors`: the draft's full tensors, if `draft` is sharded.
    `tokens` are those of the step records: id, text, origin, depth, rank.
    """
    start = int(conversation.mask.nonzero()[0])
    prompt = conversation.token_ids[:start].tolist()
    target = Target(base, start + TOKENS + GPU_TREE.nodes + 4)
    drafter = make_drafter(target, copy_as_loaded(base, draft, tensors))
    steps = list(generate(target, drafter, prompt, GenerateConfig(max_tokens=TOKENS)))
    stream = TextStream(base.tokenizer)
    tokens = [token for record in stream.records(steps) for token in record["tokens"]]
    return {
        "prompt": base.tokenizer.decode(prompt, skip_special_tokens=True),
        "text": stream.text,
        "tokens": tokens,
        "mean_accepted_length": summarize(steps).mean_accepted_length,
    }


def copy_as_loaded(base: Any, draft: Any, tensors: dict[str, Tensor] | None = None) -> Any:
    """A copy of `draft` (or of `tensors`) in the base's dtype, as loaded from a checkpoint."""
    copy = draft_class(draft.method).from_json(draft.to_json(), base)
    copy.load_state_dict(tensors or draft_tensors(draft), strict=False)
    return copy.eval().requires_grad_(False)
