"""How much there is of what a request names: rows, turns, tokens, parameters, bytes. No torch.

What nobody counted yet is guessed from settings and prompts; a base without a card counts as 0.
"""

import json
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from models.methods.settings import TrainConfig
from speculoos.errors import NotFound
from tracking.names import KIND_NAMES
from tracking.tables import Base, Dataset, Table
from workers.jobs.request import Need

BYTES_PER_TOKEN = 14
"""Of a stored answer: a token's text and its id in JSON."""
FORWARD_OPERATIONS = 3e8
"""Operations in the time that a forward of a batch takes however small the base (3 ms at `pace.OPERATIONS`)."""
PROMPT_TOKENS = 60
"""Tokens of a prompt where nobody counted."""
COUNTED_ROWS, COUNTED_BYTES = 1000, 64 << 20
"""Conversations from which a draft vocabulary's size is told, and the most that is read of them."""
STEP_FIXED_BYTES = 2e7
"""Read in the time that Python and its kernels take for a decoding step of any base, about 1 ms."""
TUNING_STEPS = 250
"""Forwards and steps that a tuning takes besides its questions' (`decoding.tuning.measure_forward`: the wide ones take
longer)."""


def found(session: Session, table: type[Table], row_id: str) -> Any:
    """The row. Raises NotFound."""
    if row := session.get(table, row_id):
        return row
    raise NotFound(f"This {KIND_NAMES[table.__tablename__]} is gone; choose another.")


def file_need(path: str) -> Need:
    """Of reading files on this machine; nothing for what is not here."""
    size = folder_bytes(path)
    return Need(size, size)


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


def questions(session: Session, dataset_id: str, limit: int) -> int:
    """Questions of an evaluation: rows of the data set, at most `limit`, or `limit` where they are not counted yet."""
    data = session.get(Dataset, dataset_id) if dataset_id else None
    return min(limit, expected_rows(session, data) if data else 0) or limit


def total_tokens(data: Dataset, count: int) -> float:
    """Tokens of `count` rows: the counted ones of an import, else the answers' and guessed prompts."""
    report = data.report or {}
    if report.get("answer_tokens") and report.get("tokens"):
        return report["tokens"]
    return answer_tokens(data, count) + count * PROMPT_TOKENS


def answer_tokens(data: Dataset, count: int) -> float:
    """Tokens of the answers of `count` rows: counted ones, else a guess from its settings."""
    report = data.report or {}
    return report.get("answer_tokens") or report.get("tokens") or count * (data.config or {}).get("max_tokens", 256)


def trained_tokens(config: TrainConfig, once: float) -> float:
    """Tokens that pass while training: `once` an epoch, and no more than the step limit allows."""
    most = config.max_steps * config.step_tokens
    if not config.epochs:
        return most or once
    return min(once * config.epochs, most) if most else once * config.epochs


def steps(config: TrainConfig, tokens: float, length: float) -> int:
    """Optimizer steps that so many tokens make in conversations of `length`: half of one does not fit into a batch on
    average (`training.batches.make_batches`)."""
    if config.max_steps and not config.epochs:
        return config.max_steps
    filled = max(config.batch_tokens - length / 2, min(length, config.max_length), 1)
    found = max(math.ceil(tokens / (filled * config.accumulate)), 1)
    return min(found, config.max_steps) if config.max_steps else found


def held_out_tokens(config: TrainConfig, tokens: float, count: int) -> float:
    """Of `tokens` in `count` conversations, those that are kept for measuring."""
    return tokens * min(config.held_out, config.max_held_out / max(count, 1))


def draft_vocabulary(base: Base, data: Dataset, config: Any) -> int:
    """Tokens the draft of these settings will know: those asked for, or those that cover so much of the answers as the
    settings say, counted in the first conversations."""
    whole = int((base.card or {}).get("vocabulary") or 0)
    coverage = getattr(config, "draft_vocab_coverage", 0)
    if coverage and data.state == "ready":
        return covering(data.path, data.rows, coverage) or whole
    return min(getattr(config, "draft_vocab_size", 0) or whole, whole)


def covering(folder: str, rows: int, coverage: float) -> int:
    """How many different tokens make up `coverage` of the answers' tokens; 0 where the rows hold no tokens."""
    return smallest(vocabulary_curve(((folder, rows),)), coverage)


@lru_cache(maxsize=64)
def vocabulary_curve(sets: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    """How many tokens of the answers in the first conversations of these (folder, rows) are among the most frequent
    one, two, three … tokens; () where the rows hold no token ids. `rows` makes a set that grew another question."""
    counts: Counter[int] = Counter()
    for folder, _ in sets:
        counts.update(chain.from_iterable(map(_answer_ids, _first_lines(Path(folder)))))
    return tuple(accumulate(count for _, count in counts.most_common()))


def smallest(curve: tuple[int, ...], coverage: float) -> int:
    """Tokens of the smallest draft vocabulary that has `coverage` of the answers' tokens; 0 where nothing is known."""
    return min(bisect_left(curve, coverage * curve[-1]) + 1, len(curve)) if curve else 0


def coverage_of(curve: tuple[int, ...], size: int) -> float:
    """Part of the answers' tokens that a draft vocabulary of `size` tokens has."""
    return curve[min(size, len(curve)) - 1] / curve[-1]


def parameters(base: Base) -> float:
    """Of the base, from its card."""
    return (base.card or {}).get("parameters") or 0


def hidden(base: Base) -> float:
    """The base's hidden size."""
    return (base.card or {}).get("hidden_size") or 0


def weights_bytes(base: Base) -> float:
    """Memory of the base in fp32 (what CPUs run)."""
    return parameters(base) * 4


def step_bytes(base: Base) -> float:
    """Bytes read by a decoding step, with STEP_FIXED_BYTES for what it costs however small the base; 0 where its size
    is not known."""
    weights = weights_bytes(base)
    return weights + STEP_FIXED_BYTES if weights else 0.0


def tuning_bytes(base: Base, questions: int, tokens: int) -> float:
    """Read by a tuning: a step a token at most, with the widest tree; then forwards of every size and some drafting."""
    return (questions * tokens + TUNING_STEPS) * step_bytes(base)


def frame_bytes(base: Base) -> float:
    """Memory of embeddings and head in fp32: what of a base stays that runs elsewhere."""
    return 2 * 4 * ((base.card or {}).get("vocabulary") or 0) * hidden(base)


def cache_bytes(base: Base) -> float:
    """Bytes of key-value cache a token: 2 · layers · key-value width · 4."""
    card = base.card or {}
    heads = card.get("heads") or 1
    return 2 * (card.get("layers") or 0) * hidden(base) / heads * (card.get("kv_heads") or heads) * 4


def folder_bytes(path: str) -> float:
    """Bytes of a file, or of the files in a folder; 0 where there is none here."""
    place = Path(path)
    if place.is_file():
        return place.stat().st_size
    return sum(file.stat().st_size for file in place.glob("*") if file.is_file()) if path and place.is_dir() else 0


def _first_lines(folder: Path) -> Iterator[bytes]:
    """Of the first COUNTED_ROWS conversations, of no more than COUNTED_BYTES."""
    left = COUNTED_BYTES
    for line in islice(_lines(folder), COUNTED_ROWS):
        left -= len(line)
        if left < 0:
            return
        yield line


def _lines(folder: Path) -> Iterator[bytes]:
    for shard in sorted(folder.glob("shard-*.jsonl")):
        with shard.open("rb") as lines:
            yield from lines


def _answer_ids(line: bytes) -> list[int]:
    """None of a damaged line: whoever trains on it is told."""
    try:
        row = json.loads(line)
    except ValueError:
        return []
    if not isinstance(row, dict):
        return []
    ids = row.get("token_ids") or []
    return [token for start, end in row.get("loss_spans") or [] for token in ids[start:end]]
