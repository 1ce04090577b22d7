"""Records greedy answers of a base to a file for `speculoos replay run`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.target import fast_target
from models.base import LoadedBase
from models.chat import render


def record(base: LoadedBase, max_tokens: int, questions: Sequence[dict[str, Any]], path: Path) -> int:
    """Write the answer to each question's messages, with its token ids; returns their number."""
    target = fast_target(base, 4096)
    with path.open("w") as file:
        for question in questions:
            prompt = render(base.tokenizer, question["messages"])
            target.rewind(0)
            steps = generate(target, make_drafter(target), prompt, GenerateConfig(max_tokens=max_tokens))
            ids = [token.id for step in steps for token in step.tokens]
            text = base.tokenizer.decode(ids, skip_special_tokens=True)
            messages = [*question["messages"], {"role": "assistant", "content": text}]
            line = {"id": question["id"], "messages": messages, "prompt_ids": prompt, "token_ids": ids}
            line["finish"] = "stop" if ids[-1] in base.eos_ids else "length"
            file.write(json.dumps(line) + "\n")
    return len(questions)
