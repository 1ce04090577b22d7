"""What a run will take, said before it starts: time, disk, memory. Rough, and says what it rests on. No torch.

Time comes from what this home measured with the same base where it did; else from arithmetic:
a forward pass costs about 2 · parameters floating-point operations a token, a backward pass twice as much again
(Kaplan et al. 2020, section 2.1), and a device does RATE of them a second in practice.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from methods import METHODS
from speculoos.errors import NotFound
from tracking.tables import Base, Dataset, Table
from workers.ask.requests import GenerateData, Train

CPU_RATE = 8e9
"""Useful operations a second and core, fp32, small batches."""
PROMPT_TOKENS = 60
"""Tokens of a prompt where nobody counted."""
BYTES_PER_TOKEN = 14
"""A stored answer's token: its text and its id in JSON."""
START_SECONDS = 10
"""For the process to start and the base to load."""
SPARE_DISK = 500 * 10**6
UNKNOWN = "rows that are not made yet"
ARITHMETIC = "arithmetic, before anything was measured"


@dataclass(frozen=True)
class Estimate:
    """Seconds (None: cannot be said), bytes on disk, bytes of memory, and what the time rests on."""

    seconds: float | None
    disk: float
    memory: float
    basis: str
    free_disk: float
    free_memory: float

    @property
    def warnings(self) -> list[str]:
        """What will not fit, one sentence each."""
        sentences = []
        if self.disk + SPARE_DISK > self.free_disk:
            sentences.append("The disk of the home folder may not have room for this; free some space first.")
        if self.memory > self.free_memory:
            sentences.append(
                "This may need more memory than the machine has free; take a smaller batch or a smaller base."
            )
        return sentences


def generation(session: Session, request: GenerateData, home: Path) -> Estimate:
    """Answers for a prompt set."""
    source = _found(session, Dataset, request.source_id, "data set")
    expected = expected_rows(session, source)
    count = min(expected, request.limit or expected) * turns(source) * request.samples
    tokens = count * request.max_tokens
    disk = count * (request.max_tokens + PROMPT_TOKENS) * BYTES_PER_TOKEN
    if request.endpoint:
        return _made(None, disk, 2e8, "an endpoint's speed is not known before it answers", home)
    base = _found(session, Base, request.base_id, "model")
    speed, basis = generation_speed(session, base)
    seconds = START_SECONDS + tokens / speed if speed and count else None
    if request.max_minutes:
        seconds = min(seconds or request.max_minutes * 60, request.max_minutes * 60)
    length = PROMPT_TOKENS + request.max_tokens
    memory = weights_bytes(base) * 1.2 + request.batch_size * length * cache_bytes(base)
    return _made(seconds, disk, memory + 4e8, basis, home)


def training(session: Session, request: Train, config: Any, home: Path) -> Estimate:
    """A draft; `config` is the TrainConfig the request comes to."""
    base, data = (
        _found(session, Base, request.base_id, "model"),
        _found(session, Dataset, request.dataset_id, "data set"),
    )
    draft = METHODS[config.method].size(hidden(base.card), base.card.get("vocabulary") or 0, config)
    count = expected_rows(session, data)
    stored = total_tokens(data, count)
    tokens = trained_tokens(config, min(stored, count * config.max_length))
    work = tokens * (2 * parameters(base) + 6 * draft.multiplied * draft.passes)
    seconds = START_SECONDS + work / rate() if count else None
    if config.max_minutes:
        seconds = min(seconds or config.max_minutes * 60, config.max_minutes * 60)
    states = draft.parameters * 12 * (config.keep_last + 1)
    logits = 4 * 3 * min(config.batch_tokens, 1024) * (base.card.get("vocabulary") or 0)
    features = stored * draft.features * hidden(base.card) * (4 if config.base_dtype == "float32" else 2)
    in_memory = min(config.cache_features_mb * 1e6, features)
    on_disk = min(config.cache_disk_gb * 1e9, features - in_memory)
    memory = weights_bytes(base) * 1.1 + draft.parameters * 16 + logits + in_memory + 4e8
    return _made(seconds, draft.parameters * 4 + states + on_disk, memory, ARITHMETIC if count else UNKNOWN, home)


def generation_speed(session: Session, base: Base) -> tuple[float, str]:
    """(tokens a second, what that rests on) for answers by `base`; 0 when nothing is known of it."""
    query = select(Dataset).where(Dataset.base_id == base.id, Dataset.state == "ready")
    for dataset in session.scalars(query.order_by(Dataset.created_at.desc()).limit(10)):
        if (speed := (dataset.report or {}).get("tokens_per_second")) and (dataset.report or {}).get("seconds", 0) > 5:
            return float(speed), f"the speed measured for “{dataset.name}”"
    count = parameters(base)
    return (rate() / (2 * count) if count else 0.0), ARITHMETIC


def turns(data: Dataset) -> float:
    """User turns of an average row."""
    counts = (data.report or {}).get("turns")
    if not isinstance(counts, dict) or not data.rows:
        return 1.0
    return max(sum(int(n) * c for n, c in counts.items()) / max(sum(counts.values()), 1), 1.0)


def expected_rows(session: Session, data: Dataset) -> int:
    """Rows of a data set, or, while it is being made, of the prompts it answers; 0 when nobody knows yet."""
    if data.rows or not data.source_id:
        return data.rows
    source = session.get(Dataset, data.source_id)
    return min(source.rows, (data.config or {}).get("limit") or source.rows) if source else 0


def total_tokens(data: Dataset, count: int) -> float:
    """Tokens of `count` rows: the answers' counted ones and guessed prompts, else a guess from its settings."""
    answers = (data.report or {}).get("tokens") or count * (data.config or {}).get("max_tokens", 256)
    return answers + count * PROMPT_TOKENS


def trained_tokens(config: Any, once: float) -> float:
    """Tokens that pass while training: `once` an epoch, and no more than the step limit allows."""
    most = config.max_steps * config.batch_tokens * config.accumulate
    if not config.epochs:
        return most or once
    return min(once * config.epochs, most) if most else once * config.epochs


def parameters(base: Base) -> float:
    """Of the base, from its card; 0 when it has none yet."""
    return (base.card or {}).get("parameters") or 0


def hidden(card: dict[str, Any]) -> float:
    return card.get("hidden_size") or 0


def weights_bytes(base: Base) -> float:
    """Memory of the base in fp32 (what CPUs run)."""
    return parameters(base) * 4


def cache_bytes(base: Base) -> float:
    """Bytes of key-value cache a token: 2 · layers · key-value width · 4."""
    card = base.card or {}
    heads = card.get("heads") or 1
    width = hidden(card) / heads * (card.get("kv_heads") or heads)
    return 2 * (card.get("layers") or 0) * width * 4


def rate() -> float:
    """Operations a second of this machine's processor, roughly."""
    return CPU_RATE * (os.cpu_count() or 1)


def _found(session: Session, table: type[Table], row_id: str, word: str) -> Any:
    if row := session.get(table, row_id):
        return row
    raise NotFound(f"This {word} is gone; choose another.")


def _made(seconds: float | None, disk: float, memory: float, basis: str, home: Path) -> Estimate:
    import psutil

    existing = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    return Estimate(seconds, disk, memory, basis, free, psutil.virtual_memory().available)
