"""One side of the generation benchmark, started by benchmarks.datagen: our local generation or transformers.generate.

Uses the modules of the tree it is started in, possibly an older commit. `prompts` in its argument is a file with a JSON
list of lists of token ids. For each JSON line `{"batch": 32}` it answers all prompts and writes
`{"seconds", "cpu_seconds", "digest", "peak_memory_mb"}`.
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
    """Continuous batching, longest prompts first, as in `corpus.generate_local`."""
    from corpus.batch import BatchAnswer, answer_all

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


def load(arguments: dict[str, Any]) -> Any:
    from models.base import load_base

    base = load_base(arguments["model"], dtype=arguments["dtype"])
    if arguments["side"] == "ours" and Path("decoding/fast_layers.py").exists():  # older commits
        from decoding.fast_layers import pack_known

        pack_known(base)
    return base


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(arguments["threads"])
    prompts, base = json.loads(Path(arguments["prompts"]).read_text()), load(arguments)
    run = ours if arguments["side"] == "ours" else theirs
    run(base, prompts[:2], 2, 2)  # warm-up: kernel selection and weight packing
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        began, cpu_began = time.perf_counter(), time.process_time()
        answers = run(base, prompts, arguments["tokens"], json.loads(line)["batch"])
        report = {
            "seconds": time.perf_counter() - began,
            "cpu_seconds": time.process_time() - cpu_began,
            "digest": [hashlib.sha256(json.dumps(answer).encode()).hexdigest()[:12] for answer in answers],
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
