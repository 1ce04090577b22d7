"""Sample generations during training with the current draft, token by token."""

from typing import Any, NamedTuple

import torch

from decoding.drafters import make_drafter
from decoding.drafters.eagle import GPU_TREE
from decoding.generate import GenerateConfig, generate
from decoding.stats import Summary, summarize
from decoding.target import Target, usable_length
from decoding.text import TextStream
from models.checkpoints import draft_class, stored_tensors
from training.batches import TokenizedConversation

TOKENS = 48  # maximum length of a sample answer


class ModelAnswer(NamedTuple):
    """One generated answer: its text, the tokens of its step records, and the summary of its steps."""

    text: str
    tokens: list[dict[str, Any]]
    summary: Summary

    @property
    def token_ids(self) -> list[int]:
        return [token["id"] for token in self.tokens]


def can_be_sampled(base: Any, conversation: TokenizedConversation) -> bool:
    """Whether the engine can answer the conversation's first prompt: there is one, and it fits the base."""
    return 0 < int(conversation.mask.nonzero()[0]) < usable_length(base)


def sample(base: Any, draft: Any, conversation: TokenizedConversation, tensors: Any = None) -> dict[str, Any]:
    """Answer the first prompt greedily. `tensors`: the full tensors of `draft` if it is sharded."""
    start = int(conversation.mask.nonzero()[0])
    prompt = conversation.token_ids[:start].tolist()
    length = start + TOKENS + GPU_TREE.nodes + 4
    answer = draft_answer(base, copy_as_loaded(base, draft, tensors), prompt, GenerateConfig(max_tokens=TOKENS), length)
    return {
        "prompt": base.tokenizer.decode(prompt, skip_special_tokens=True),
        "text": answer.text,
        "tokens": answer.tokens,
        "mean_accepted_length": answer.summary.mean_accepted_length,
    }


@torch.no_grad()
def draft_answer(base: Any, draft: Any, prompt: list[int], config: GenerateConfig, max_length: int) -> ModelAnswer:
    target, stream = Target(base, max_length), TextStream(base.tokenizer)
    steps = list(generate(target, make_drafter(target, draft), prompt, config))
    tokens = [token for record in stream.records(steps) for token in record["tokens"]]
    return ModelAnswer(stream.text, tokens, summarize(steps))


def copy_as_loaded(base: Any, draft: Any, tensors: Any = None) -> Any:
    """A copy of `draft` (with `tensors`, if it is sharded) in the base's dtype, as loaded from a checkpoint."""
    copy = draft_class(draft.method).from_json(draft.to_json(), base)
    copy.load_state_dict(tensors or stored_tensors(draft), strict=False)
    return copy.eval().requires_grad_(False)
