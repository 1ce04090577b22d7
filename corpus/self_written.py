"""Prompts that the base writes itself: it continues the chat template after the user tag, and stops at the end of turn.

What comes out is spread like the data the base was tuned on, which is what a draft for it should see.
Source: Xu et al. 2024 (Magpie, arXiv 2406.08464), section 2.1.
"""

from collections.abc import Iterator
from itertools import islice

from corpus.batch import BatchAnswer, answer_all
from corpus.seeds import row_numbers
from models.base import LoadedBase
from models.chat import render
from speculoos.errors import Unsupported

MARK = "\u2063user\u2063"
SHORTEST = 8  # characters; shorter ones are scraps
MAX_TOKENS, TEMPERATURE, TOP_P = 96, 1.0, 0.95


def self_written_prompts(base: LoadedBase, number: int, batch_size: int, seed: int) -> Iterator[str]:
    """Up to `number` different user turns sampled from `base`, in the order they end; unfinished ones are dropped.

    Raises Unsupported for a base without a chat template that puts something before the user's words.
    """
    opening = _before_user(base)
    numbers = iter(range(2 * number))

    def source(most: int) -> list[BatchAnswer]:
        drawn = [(f"self-{n}", row_numbers(seed, f"self-{n}", 0)) for n in islice(numbers, most)]
        return [BatchAnswer(list(opening), MAX_TOKENS, own, tag, TEMPERATURE) for tag, own in drawn]

    seen: set[str] = set()
    for ended, _running in answer_all(base, source, batch_size, TOP_P):
        for answer in ended:
            text = base.tokenizer.decode(answer.tokens, skip_special_tokens=True).strip()
            if answer.finish == "stop" and len(text) >= SHORTEST and text not in seen:
                seen.add(text)
                yield text
                if len(seen) >= number:
                    return


def _before_user(base: LoadedBase) -> list[int]:
    """Ids of what the template writes before the user's words."""
    rendered = base.tokenizer.decode(render(base.tokenizer, [{"role": "user", "content": MARK}]))
    before, mark, _after = rendered.partition(MARK)
    if not mark or not before.strip():
        raise Unsupported("This base's chat template puts nothing before the user's words, so it cannot write prompts.")
    return base.tokenizer(before, add_special_tokens=False)["input_ids"]
