"""One commit's decoding, started by benchmarks.commits: answers the prompt it is told with the drafter it is told.

Runs with the modules of the tree it is started in, so it uses only what old and new trees have.
"""

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

TREE = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
"""Said here, since what an untuned tree is may differ between commits."""


def fast_target(base: Any) -> Any:
    try:
        from decoding.target import fast_target
    except ImportError:  # before there was a runtime
        from decoding.fast import fast_target
    return fast_target(base, 2048)


def main() -> None:
    given = json.loads(sys.argv[1])
    torch.set_num_threads(given["threads"])

    from benchmarks.peers.common import peak_memory_mb
    from decoding.config import GenerateConfig
    from decoding.drafters import make_drafter
    from decoding.generate import generate
    from models.base import load_base
    from models.checkpoints import load_draft

    base = load_base(given["model"], dtype=given["dtype"])
    draft = load_draft(given["checkpoint"], base)
    target = fast_target(base)
    drafters = {"plain": make_drafter(target, None, {}), "head": make_drafter(target, draft, {"tree": TREE})}
    prompts = json.loads(Path(given["prompts"]).read_text())
    config = GenerateConfig(given["tokens"])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        target.rewind(0)
        began = time.perf_counter()
        steps = list(generate(target, drafters[command["drafter"]], prompts[command["prompt"]], config))
        seconds = time.perf_counter() - began
        tokens = [token.id for step in steps for token in step.tokens]
        digest = hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:12]
        report = {"seconds": seconds, "tokens": len(tokens), "digest": digest, "peak_memory_mb": peak_memory_mb()}
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
