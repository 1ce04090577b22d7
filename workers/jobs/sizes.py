"""Sizes of the inputs of a request: rows, turns, tokens, parameters, bytes. No torch.

Unknown counts are estimated from settings and prompts; a base without a card counts as 0.
"""

import math
from typing import Any

from sqlalchemy.orm import Session

from models.methods.record import BaseShape
from models.methods.settings import TrainConfig
from speculoos.errors import NotFound
from tracking.names import KIND_NAMES
from tracking.tables import Base, Dataset, Table

BYTES_PER_TOKEN = 14  # of stored answers: text and id of a token in JSON
FORWARD_OPERATIONS = 3e8  # fixed cost of a forward of a batch, in operations (3 ms at `estimates.OPERATIONS`)
PROMPT_TOKENS = 60  # estimated tokens of a prompt whose characters were not counted
CHARACTERS_PER_TOKEN = 4  # of English prompts
TEMPLATE_TOKENS = 30  # added to a prompt by a chat template with a system prompt
STEP_FIXED_BYTES = 2e7  # fixed cost of a decoding step, in bytes read (about 1 ms)


def require_row(session: Session, table: type[Table], row_id: str) -> Any:
    """The row with this id. Raises NotFound."""
    if row := session.get(table, row_id):
        return row
    raise NotFound(f"This {KIND_NAMES[table.__tablename__]} was deleted; choose another.")


def turns(data: Dataset) -> float:
    """Average user turns per row."""
    counts = (data.report or {}).get("turns")
    if not isinstance(counts, dict) or not data.rows:
        return 1.0
    return max(sum(int(n) * c for n, c in counts.items()) / max(sum(counts.values()), 1), 1.0)


def prompt_tokens(data: Dataset | None) -> float:
    """Estimated tokens of a user turn of a prompt set, with the chat template's."""
    characters = (data.report or {}).get("characters") if data else None
    if not data or not data.rows or not isinstance(characters, int):
        return PROMPT_TOKENS
    return characters / data.rows / turns(data) / CHARACTERS_PER_TOKEN + TEMPLATE_TOKENS


def expected_rows(session: Session, data: Dataset) -> int:
    """Rows of a dataset; while it is being generated the number of its prompts; 0 if unknown."""
    if data.rows or not data.source_id:
        return data.rows
    source = session.get(Dataset, data.source_id)
    return min(source.rows, (data.config or {}).get("limit") or source.rows) if source else 0


def questions(session: Session, dataset_id: str, limit: int) -> int:
    """Questions of an evaluation: rows of the dataset, at most `limit`; `limit` if the rows are not counted yet."""
    data = session.get(Dataset, dataset_id) if dataset_id else None
    return min(limit, expected_rows(session, data) if data else 0) or limit


def total_tokens(session: Session, data: Dataset, count: int) -> float:
    """Tokens of `count` rows: the counts of an import, or tokens of the answers plus estimated prompts."""
    report = data.report or {}
    if report.get("answer_tokens") and report.get("tokens"):
        return report["tokens"]
    source = session.get(Dataset, data.source_id) if data.source_id else None
    return answer_tokens(data, count) + count * (turns(source) if source else 1) * prompt_tokens(source)


def answer_tokens(data: Dataset, count: int) -> float:
    """Tokens of the answers of `count` rows: counted, or estimated from the settings."""
    report = data.report or {}
    return report.get("answer_tokens") or report.get("tokens") or count * (data.config or {}).get("max_tokens", 256)


def trained_tokens(config: TrainConfig, once: float) -> float:
    """Tokens processed by a training: `once` per epoch, at most those of `max_steps`."""
    most = config.max_steps * config.step_tokens
    if not config.epochs:
        return most or once
    return min(once * config.epochs, most) if most else once * config.epochs


def steps(config: TrainConfig, tokens: float, length: float) -> int:
    """Optimizer steps for `tokens` tokens; half a conversation of each batch stays empty (`make_batches`)."""
    if config.max_steps and not config.epochs:
        return config.max_steps
    filled = max(config.batch_tokens - length / 2, min(length, config.max_length), 1)
    count = max(math.ceil(tokens / (filled * config.accumulate)), 1)
    return min(count, config.max_steps) if config.max_steps else count


def parameters(base: Base) -> float:
    """Number of parameters from the base's card; 0 if unknown."""
    return (base.card or {}).get("parameters") or 0


def hidden(base: Base) -> float:
    """Hidden size of the base; 0 if unknown."""
    return (base.card or {}).get("hidden_size") or 0


def weights_bytes(base: Base) -> float:
    """Bytes of the base in float32, as on CPUs."""
    return parameters(base) * 4


def step_bytes(base: Base) -> float:
    """Bytes read by a decoding step, including STEP_FIXED_BYTES; 0 if the base's size is unknown."""
    weights = weights_bytes(base)
    return weights + STEP_FIXED_BYTES if weights else 0.0


def cache_bytes(base: Base) -> float:
    """Bytes of KV cache per token in float32."""
    shape = BaseShape.from_card(base.card or {})
    return 2 * shape.layers * shape.key_width * 4
