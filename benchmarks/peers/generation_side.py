"""Our batched generation or transformers.generate, for benchmarks.datagen.

Imports the modules of the tree it is started in. The option `prompts` is a file with a JSON list of lists of token ids;
a command {"batch": 32} answers all of them.
"""

import hashlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from corpus.batch import BatchAnswer, answer_all
from models.base import load_base


def ours(base: Any, prompts: list[list[int]], tokens: int, batch: int) -> list[list[int]]:
    """Continuous batching, longest prompts first, as in `corpus.generate_local`."""
    base.eos_ids = frozenset()  # generate the full length
    answers = [BatchAnswer(prompt, tokens, random.Random(0)) for prompt in prompts]
    waiting = sorted(answers, key=lambda answer: -len(answer.prompt))

    def source(count: int) -> list[BatchAnswer]:
        group = waiting[:count]
        del waiting[:count]
        return group

    for _ in answer_all(base, source, batch):
        pass
    return [answer.tokens for answer in answers]


def theirs(base: Any, prompts: list[list[int]], tokens: int, batch: int) -> list[list[int]]:
    """transformers.generate on batches of prompts with similar lengths, left-padded."""
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    answers: dict[int, list[int]] = {}
    for start in range(0, len(order), batch):
        group = order[start : start + batch]
        width = max(len(prompts[i]) for i in group)
        ids = torch.tensor([[0] * (width - len(prompts[i])) + prompts[i] for i in group])
        mask = torch.tensor([[0] * (width - len(prompts[i])) + [1] * len(prompts[i]) for i in group])
        options = {"max_new_tokens": tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        out = base.model.generate(ids, attention_mask=mask, **options)
        answers.update(zip(group, out[:, width:].tolist(), strict=True))
    return [answers[i] for i in range(len(prompts))]


def make(options: dict[str, Any]) -> tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any]]]:
    prompts, base = json.loads(Path(options["prompts"]).read_text()), load_base(options["model"], options["dtype"])
    run = {"ours": ours, "transformers": theirs}[options["engine"]]
    run(base, prompts[:2], 2, 2)  # warm-up: kernel selection and weight packing

    def answer(command: dict[str, Any]) -> dict[str, Any]:
        began, cpu_began = time.perf_counter(), time.process_time()
        answers = run(base, prompts, options["max_tokens"], command["batch"])
        return {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - cpu_began,
            "digest": [hashlib.sha256(json.dumps(answer).encode()).hexdigest()[:12] for answer in answers],
        }

    return {}, answer


if __name__ == "__main__":
    from common import serve

    serve(make)
