"""Decoding with one commit, for benchmarks.commits: answers the requested prompt with the requested drafter.

Imports the modules of the tree it is started in, so it may use only what both commits share.
"""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import serve

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.target import fast_target
from models.base import load_base
from models.checkpoints import load_draft

TREE = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
"""Fixed here, since the default tree may differ between commits."""


def make(options: dict[str, Any]) -> tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any]]]:
    base = load_base(options["model"], dtype=options["dtype"])
    draft = load_draft(options["checkpoint"], base)
    target = fast_target(base, 2048)
    drafters = {"plain": make_drafter(target, None, {}), "head": make_drafter(target, draft, {"tree": TREE})}
    prompts = json.loads(Path(options["prompts"]).read_text())
    config = GenerateConfig(options["max_tokens"])

    def answer(command: dict[str, Any]) -> dict[str, Any]:
        target.rewind(0)
        began = time.perf_counter()
        steps = list(generate(target, drafters[command["drafter"]], prompts[command["prompt"]], config))
        seconds = time.perf_counter() - began
        tokens = [token.id for step in steps for token in step.tokens]
        digest = hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:12]
        return {"seconds": seconds, "tokens": len(tokens), "digest": digest}

    return {}, answer


if __name__ == "__main__":
    serve(make)
