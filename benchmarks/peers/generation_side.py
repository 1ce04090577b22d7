"""Decoding and batched generation with one commit of this project, and batched generation with transformers, for
benchmarks.commits and benchmarks.datagen (option `engine`).

Imports the modules of the tree it is started in, so it may use only what both commits share. The option `prompts` is a
file with a JSON list of lists of token ids. Commands: {"prompt": 3, "drafter": "head"} answers one of them, {"batch":
32} all.
"""

import hashlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.target import fast_target
from models.base import load_base
from models.checkpoints import load_draft

TREE = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
"""Fixed here, since the default tree may differ between commits."""
Json = dict[str, Any]


def ours(base: Any, prompts: list[list[int]], tokens: int, batch: int) -> list[list[int]]:
    """Continuous batching, longest prompts first, as in `corpus.generate_local`."""
    from corpus.batch import BatchAnswer, answer_all  # not in every commit that decodes

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


def decoding(base: Any, prompts: list[list[int]], options: Json) -> Callable[[Json], list[list[int]]]:
    """One answer at a time, plain or with the head of the option `checkpoint`."""
    head = load_draft(options["checkpoint"], base)
    target, config = fast_target(base, 2048), GenerateConfig(options["max_tokens"])
    drafters = {"plain": make_drafter(target, None, {}), "head": make_drafter(target, head, {"tree": TREE})}

    def run(command: Json) -> list[list[int]]:
        target.rewind(0)
        steps = generate(target, drafters[command["drafter"]], prompts[command["prompt"]], config)
        return [[token.id for step in steps for token in step.tokens]]

    return run


def batched(base: Any, prompts: list[list[int]], options: Json) -> Callable[[Json], list[list[int]]]:
    """All answers in batches, by us or by transformers."""
    engine = {"ours": ours, "transformers": theirs}[options["engine"]]
    engine(base, prompts[:2], 2, 2)  # warm-up: kernel selection and weight packing
    return lambda command: engine(base, prompts, options["max_tokens"], command["batch"])


def make(options: Json) -> tuple[Json, Callable[[Json], Json]]:
    prompts = json.loads(Path(options["prompts"]).read_text())
    base = load_base(options["model"], options["dtype"], options.get("device", "cpu"))
    run = (decoding if options["engine"] == "decoding" else batched)(base, prompts, options)

    def answer(command: Json) -> Json:
        began = time.perf_counter()
        answers = run(command)
        return {
            "seconds": time.perf_counter() - began,
            "tokens": sum(map(len, answers)),
            "digest": [hashlib.sha256(json.dumps(answer).encode()).hexdigest()[:12] for answer in answers],
        }

    return {}, answer


if __name__ == "__main__":
    from common import serve

    serve(make)
