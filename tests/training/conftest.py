"""A tiny base's own greedy answers as a dataset folder."""

import json
from pathlib import Path

import pytest
import torch

from tests.decoding.conftest import base_of

__all__ = ["base_of"]

torch.set_num_threads(1)


def write_dataset(folder: Path, rows: list[dict], **info: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shard-00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "dataset.json").write_text(json.dumps({"kind": "conversations", "rows": len(rows), **info}))
    return folder


def answer(base, prompt: str, tokens: int) -> dict:
    """One row: the prompt, the base's greedy answer, its token ids and spans."""
    from models.chat import render

    messages = [{"role": "user", "content": prompt}]
    ids = render(base.tokenizer, messages)
    with torch.no_grad():
        out = base.model.generate(torch.tensor([ids]), max_new_tokens=tokens, do_sample=False)[0].tolist()
    text = base.tokenizer.decode(out[len(ids) :], skip_special_tokens=True)
    return {
        "id": prompt,
        "messages": [*messages, {"role": "assistant", "content": text}],
        "token_ids": out,
        "loss_spans": [[len(ids), len(out)]],
    }


@pytest.fixture(scope="session")
def base(tiny_base):
    from models.base import load_base

    return load_base(tiny_base)


@pytest.fixture(scope="session")
def rows(base) -> list[dict]:
    return [answer(base, f"say {i} fox {i * 7}", 12 + 3 * i) for i in range(12)]


@pytest.fixture(scope="session")
def dataset(rows, tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "answers", rows)


@pytest.fixture(scope="session")
def conversations(base, dataset):
    from training.batches import load_conversations

    return load_conversations(dataset, base.tokenizer, 256, base.vocab_size)[0]
