"""Decoding with one commit, started by benchmarks.commits: answers the requested prompt with the requested drafter.

Uses the modules of the tree it is started in, so it may use only what old and new commits share.
"""

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

TREE = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
"""Fixed here, since the default tree may differ between commits."""


def fast_target(base: Any) -> Any:
    try:
        from decoding.target import fast_target
    except ImportError:  # older commits
        from decoding.fast import fast_target
    return fast_target(base, 2048)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(arguments["threads"])

    from benchmarks.peers.common import peak_memory_mb
    from decoding.config import GenerateConfig
    from decoding.drafters import make_drafter
    from decoding.generate import generate
    from models.base import load_base
    from models.checkpoints import load_draft

    base = load_base(arguments["model"], dtype=arguments["dtype"])
    draft = load_draft(arguments["checkpoint"], base)
    target = fast_target(base)
    drafters = {"plain": make_drafter(target, None, {}), "head": make_drafter(target, draft, {"tree": TREE})}
    prompts = json.loads(Path(arguments["prompts"]).read_text())
    config = GenerateConfig(arguments["tokens"])
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
