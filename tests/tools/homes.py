"""Adds bases and training data to a home without generating them."""

import json
import random
from pathlib import Path

from speculoos.settings import Settings
from tracking.db import writing
from tracking.tables import Base, Dataset, new_id
from workers.jobs.estimates import PROBE


def skip_speed_probe(home: Path) -> None:
    """Store a speed, so that an inference server in `home` measures it only once, ten seconds after its start."""
    file = home / PROBE
    file.touch(mode=0o600)
    file.write_text('{"bytes_per_second": 1}')


def add_base(settings: Settings, folder: Path, name: str = "tiny") -> str:
    """Add a ready base whose files are in `folder`; returns its id."""
    from models.card import make_card

    card = make_card(folder)
    with writing(settings) as session:
        base = Base(name=name, source="folder", location=str(folder), path=str(folder), state="ready", card=card)
        base.weights_sha256, base.tokenizer_sha256 = card["weights_sha256"], card["tokenizer_sha256"]
        session.add(base)
    return base.id


def add_answers(
    settings: Settings, base_id: str | None, name: str = "answers", rows: int = 40, length: int = 48
) -> str:
    """Add a ready dataset of conversations with random token ids; returns its id."""
    data_id = new_id()
    folder = write_answers(settings.home / "datasets" / data_id, rows, length)
    with writing(settings) as session:
        data = Dataset(id=data_id, name=name, kind="conversations", state="ready", path=str(folder), rows=rows)
        data.base_id = base_id
        session.add(data)
    return data_id


def write_answers(folder: Path, rows: int, length: int) -> Path:
    """Write a dataset folder of `rows` conversations with `length` random token ids each; returns it."""
    folder.mkdir(parents=True)
    rng = random.Random(0)
    lines = [_row(rng, number, length) for number in range(rows)]
    (folder / "shard-00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "dataset.json").write_text(json.dumps({"kind": "conversations", "rows": rows}))
    return folder


def _row(rng: random.Random, number: int, length: int) -> dict:
    messages = [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": "answer"}]
    ids = [rng.randrange(3, 250) for _ in range(length)]
    return {"id": str(number), "messages": messages, "token_ids": ids, "loss_spans": [[length // 4, length]]}
