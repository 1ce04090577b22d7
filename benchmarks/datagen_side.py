"""One side of a generation race, started by benchmarks.datagen: this tree's local generation, or transformers.generate.

Runs with the modules of the tree it is started in, which may be an older commit. `prompts` of its argument is a file, a
JSON list of lists of token ids. Reads one JSON command a line, `{"batch": 32}`, answers every prompt of the file and
writes `{"seconds", "cpu_seconds", "digest", "peak_memory_mb"}`.
"""

import hashlib
import json
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch


def ours(base: Any, prompts: list[list[int]], tokens: int, batch: int) -> list[list[int]]:
    """Continuous batches, longest prompts first, as `corpus.generate_local` has them."""
    from corpus.batch import BatchAnswer, answer_all

    base.eos_ids = frozenset()  # every answer has its full length
    answers = [BatchAnswer(prompt, tokens, random.Random(0)) for prompt in prompts]
    waiting = sorted(answers, key=lambda answer: -len(answer.prompt))

    def source(count: int) -> list[BatchAnswer]:
        taken = waiting[:count]
        del waiting[:count]
        return taken

    for _ in answer_all(base, source, batch):
        pass
    return [answer.tokens for answer in answers]


def theirs(base: Any, prompts: list[list[int]], tokens: int, batch: int) -> list[list[int]]:
    """transformers.generate on batches of prompts of like length, padded on the left."""
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


def load(given: dict[str, Any]) -> Any:
    from models.base import load_base

    base = load_base(given["model"], dtype=given["dtype"])
    if given["side"] == "ours" and Path("decoding/fast_layers.py").exists():  # before there was a runtime
        from decoding.fast_layers import pack_known

        pack_known(base)
    return base


def main() -> None:
    given = json.loads(sys.argv[1])
    torch.set_num_threads(given["threads"])
    prompts, base = json.loads(Path(given["prompts"]).read_text()), load(given)
    run = ours if given["side"] == "ours" else theirs
    run(base, prompts[:2], 2, 2)  # kernels are picked, weights taken over
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        began, spent = time.perf_counter(), time.process_time()
        answers = run(base, prompts, given["tokens"], json.loads(line)["batch"])
        report = {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - spent,
            "digest": [hashlib.sha256(json.dumps(answer).encode()).hexdigest()[:12] for answer in answers],
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
