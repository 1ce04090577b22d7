"""What a job will take, said before it starts: time, steps, disk, memory. Rough, and says what it rests on. No torch.

A forward pass costs about 2 · parameters floating-point operations a token, a backward pass twice as much again
(Kaplan et al. 2020, section 2.1); decoding one answer at a time reads all weights once a step. How much of that a
second does, `workers.ask.pace` knows.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from models.methods import METHODS
from models.methods.recipes import config_for
from models.methods.record import DraftSize
from models.methods.settings import TrainConfig
from speculoos.errors import NotFound
from speculoos.room import existing
from tracking.names import WORDS
from tracking.tables import Base, Checkpoint, Dataset, Job, Table
from workers.ask import matrix, sizes
from workers.ask.checks import fit_length
from workers.ask.pace import Aside, Pace, fixed_seconds, pace
from workers.ask.requests import (
    Evaluate,
    Export,
    FetchModel,
    GenerateData,
    ImportAnswered,
    ImportDraft,
    ImportPrompts,
    Matrix,
    PlanRequest,
    ReplayRequest,
    Request,
    Train,
    Tune,
)

BYTES_PER_TOKEN = 14
"""A stored answer's token: its text and its id in JSON."""
SPARE_DISK = 500 * 10**6
STEPS_PER_TOKEN = 1.7
"""Of an evaluation: a plain step for each token, and 0.7 drafted ones at τ 1.4."""
REPEATED = 3
"""An evaluation with drafting asks again on a busy machine, until it took so many times its first pass."""
REPLAY_STEPS = 0.5
"""Of a replay, for each recorded token of an answer: a drafted step at τ 2."""
STEP_OPERATIONS = 1000
"""An optimizer step's clipping and update of a parameter, which wait for memory, in operations of the same time."""
FIXED_OPERATIONS, FORWARD_OPERATIONS = 2e9, 3e8
"""Operations in the time that an optimizer step, and a forward of a batch, takes however small the base: 20 and 3 ms
where OPERATIONS holds. Without them, estimates for tiny bases are half of what the jobs take."""
SAMPLED_TOKENS = 2 * 2 * 48
"""Of a training's sample generations, at its first and its last measurement …"""
SAMPLED_READS, SAMPLED_LEVELS = 1.5, 3
"""… each of which reads the base as often, since several rows are verified, and the draft once a level."""
PLAN_FORWARDS = 60
"""Of a plan: six rounds of ten numbers of rows; `n` sequences at once cost as much as 3 + n of one row, with the drafts
of a round among it."""
UNKNOWN = "rows that are not made yet"
UNASKED = "an endpoint that has not answered yet"


@dataclass(frozen=True)
class Estimate:
    """Seconds (None: cannot be said), work as `workers.ask.pace` counts it, bytes on disk, bytes of memory, what the
    time rests on, and the optimizer steps of a training, with their rhythm in words. `longest`: seconds where a busy
    machine makes an evaluation repeat its questions; None where nothing is repeated."""

    seconds: float | None
    work: float
    disk: float
    memory: float
    basis: str
    free_disk: float
    free_memory: float
    steps: int = 0
    rhythm: str = ""
    longest: float | None = None

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


@dataclass(frozen=True)
class _Need:
    """What a request needs, time left to the pace."""

    work: float
    disk: float = 0.0
    memory: float = 2e8
    minutes: float | None = None
    """The clock's limit."""
    steps: int = 0
    rhythm: str = ""
    aside: Aside = Aside()
    repeated: int = 1
    """How many times the work is done at most."""


def estimate(session: Session, request: Request, home: Path) -> Estimate:
    """Of any request. Raises NotFound where one of its rows is gone."""
    if isinstance(request, Matrix):
        return _matrix(of_cells(session, matrix.cells(session, request), home), home)
    return _alone(session, request, home, pace)


def of_cells(session: Session, cells: Sequence[Evaluate], home: Path) -> list[Estimate]:
    """Of each cell of a matrix what it is as an evaluation alone. Past jobs are looked through once a base."""
    paces: dict[tuple[str, str], Pace | None] = {}

    def paced(session: Session, cell: Evaluate, home: Path, aside: Aside) -> Pace | None:
        of = cell.base_id, cell.endpoint
        if of not in paces:
            paces[of] = pace(session, cell, home, aside)
        return paces[of]

    return [_alone(session, cell, home, paced) for cell in cells]


def _matrix(cells: Sequence[Estimate], home: Path) -> Estimate:
    """Every cell one after the other, each in a process of its own."""
    if not cells:
        return _made(_Need(0.0), None, 0.0, home)
    seconds = sum(cell.seconds or 0.0 for cell in cells) if all(cell.seconds for cell in cells) else None
    repeats = any(cell.longest for cell in cells)
    return replace(
        cells[0],
        seconds=seconds,
        longest=sum(cell.longest or cell.seconds for cell in cells) if seconds and repeats else None,
        work=sum(cell.work for cell in cells),
        disk=sum(cell.disk for cell in cells),
        memory=max(cell.memory for cell in cells),
        basis=", ".join(dict.fromkeys(cell.basis for cell in cells)),
    )


def _alone(session: Session, request: Request, home: Path, paced: Callable[..., Pace | None]) -> Estimate:
    kind = next((kind for kind in NEEDS if isinstance(request, kind)), None)
    need = NEEDS[kind](session, request) if kind else _Need(0.0)
    fixed = fixed_seconds(request, need.aside, home)
    return _made(need, paced(session, request, home, need.aside) if need.work else None, fixed, home)


def _generation(session: Session, request: GenerateData) -> _Need:
    """Answers for a prompt set."""
    source = _found(session, Dataset, request.source_id)
    expected = sizes.expected_rows(session, source)
    count = min(expected, request.limit or expected) * sizes.turns(source) * request.samples
    tokens = count * request.max_tokens
    disk = count * (request.max_tokens + sizes.PROMPT_TOKENS) * BYTES_PER_TOKEN
    if request.endpoint:
        return _Need(tokens, disk, minutes=request.max_minutes)
    base = _found(session, Base, request.base_id)
    length = sizes.PROMPT_TOKENS + request.max_tokens
    memory = sizes.weights_bytes(base) * 1.2 + request.batch_size * length * sizes.cache_bytes(base)
    forward = 2 * sizes.parameters(base) + FORWARD_OPERATIONS / request.batch_size
    work = (tokens + count * sizes.PROMPT_TOKENS) * (forward if sizes.parameters(base) else 0.0)
    return _Need(work, disk, memory + 4e8, request.max_minutes)


def _training(session: Session, request: Train) -> _Need:
    """A draft. The base runs over what is kept once, over what is not in every epoch; what is held out is drafted for
    at each measurement."""
    base = _found(session, Base, request.base_id)
    sets = [_found(session, Dataset, row_id) for row_id in request.dataset_ids]
    config = fit_length(config_for(request.method, request.recipe, request.settings), request.settings, base)
    vocabulary = max(sizes.draft_vocabulary(base, data, config) for data in sets)
    draft = _draft_size(base, vocabulary, config)
    counts = [sizes.expected_rows(session, data) for data in sets]
    kept_tokens = (min(sizes.total_tokens(d, n), n * config.max_length) for d, n in zip(sets, counts, strict=True))
    count, stored = sum(counts), sum(kept_tokens)
    config = config.for_tokens(stored)
    tokens = sizes.trained_tokens(config, stored)
    features = stored * draft.features * sizes.hidden(base) * (4 if config.base_dtype == "float32" else 2)
    in_memory = min(config.cache_features_mb * 1e6, features)
    on_disk = min(config.cache_disk_gb * 1e9, features - in_memory)
    kept = (in_memory + on_disk) / features if features else 0.0
    read = min(stored, tokens) * kept + tokens * (1 - kept)
    elsewhere = bool(config.hidden_states)
    forwards = 0.0 if elsewhere else read * 2 * sizes.parameters(base)
    steps = sizes.steps(config, tokens, stored / max(count, 1))
    held_out = sizes.held_out_tokens(config, stored, count)
    config = config.for_steps(steps if config.epochs or config.max_steps else 0, held_out / config.step_tokens)
    measured = held_out * (1 + (steps // config.eval_every if config.eval_every else 0))
    learned = (tokens * 6 * draft.passes + measured * 2 * draft.measured) * draft.multiplied
    work = forwards + learned + steps * (STEP_OPERATIONS * draft.parameters + FIXED_OPERATIONS)
    states = draft.parameters * 12 * config.keep_last
    logits = 4 * 3 * min(config.batch_tokens, 1024) * vocabulary
    held = sizes.frame_bytes(base) if elsewhere else sizes.weights_bytes(base)
    memory = held * 1.1 + draft.parameters * 16 + logits + in_memory + 4e8
    disk = draft.parameters * 4 + states + on_disk + (features if config.hidden_states_store else 0)
    aside = Aside() if elsewhere else _aside(base, draft)
    return _Need(work if count else 0.0, disk, memory, config.max_minutes or None, steps, _rhythm(config), aside)


def _aside(base: Base, draft: DraftSize) -> Aside:
    """Of a training that has its base here."""
    sampled = SAMPLED_TOKENS * SAMPLED_READS * sizes.step_bytes(base)
    drafted = SAMPLED_TOKENS * SAMPLED_LEVELS * 4 * draft.multiplied
    return Aside(sizes.tuning_bytes(base, Tune.limit, Tune.max_tokens), sampled, drafted)


def _rhythm(config: TrainConfig) -> str:
    """Of which steps a training is made, and when it is measured."""
    measured = f"measured every {config.eval_every:,}" if config.eval_every else "measured at its end"
    return f"of {config.step_tokens:,} tokens, {measured}"


def _draft_size(base: Base, vocabulary: int, config: Any) -> DraftSize:
    """Of a draft that knows `vocabulary` tokens, however the settings say that."""
    if vocabulary and hasattr(config, "draft_vocab_size"):
        config = config.model_copy(update={"draft_vocab_size": vocabulary, "draft_vocab_coverage": 0.0})
    return METHODS[config.method].size(sizes.hidden(base), (base.card or {}).get("vocabulary") or 0, config)


def _evaluation(session: Session, request: Evaluate) -> _Need:
    """Every question twice, plain and drafted; a step reads the weights once. Of a server, its answers' tokens."""
    turns = 1.0
    if request.dataset_id:
        turns = sizes.turns(_found(session, Dataset, request.dataset_id))
    tokens = sizes.questions(session, request) * turns * request.max_tokens
    if request.endpoint:
        return _Need(tokens * (2 if request.plain_model else 1), 1e5)
    base = _found(session, Base, request.base_id)
    work = tokens * (STEPS_PER_TOKEN if _drafts(request) else 1) * sizes.step_bytes(base)
    return _Need(work, 1e5, sizes.weights_bytes(base) * 1.3 + 5e8, repeated=most_passes(request))


def _drafts(request: Evaluate) -> bool:
    """Whether anything drafts beside plain decoding."""
    return bool(request.checkpoint_id) or request.drafting.get("drafter", "none") != "none"


def most_passes(request: Evaluate) -> int:
    """How often its questions are asked at most."""
    return REPEATED if _drafts(request) and not request.endpoint else 1


def longest_seconds(job: Job) -> float | None:
    """What an evaluation that runs may take where a busy machine makes it repeat its questions; None for other jobs."""
    if job.kind != Evaluate.kind or not job.estimated_seconds:
        return None
    known = {key: job.request[key] for key in ("checkpoint_id", "drafting", "endpoint") if key in (job.request or {})}
    passes = most_passes(Evaluate(**known))
    return job.estimated_seconds * passes if passes > 1 else None


def _plan(session: Session, request: PlanRequest) -> _Need:
    """Its questions, answered plainly and drafted, and a forward for each number of sequences and rows, again and
    again; nothing of that where another machine's figures are given."""
    if request.costs:
        return _Need(0.0, 1e5)
    base = _found(session, Base, request.base_id)
    asked = request.limit * request.max_tokens * 2 if request.checkpoint_id else 0
    forwards = PLAN_FORWARDS * sum(3 + batch for batch in request.batches)
    return _Need((asked + forwards) * sizes.step_bytes(base), 1e5, sizes.weights_bytes(base) * 1.5 + 5e8)


def _replay(session: Session, request: ReplayRequest) -> _Need:
    """Every recorded answer once, in drafted steps."""
    base = _found(session, Base, request.base_id)
    data = _found(session, Dataset, request.dataset_id)
    rows = sizes.expected_rows(session, data)
    tokens = sizes.answer_tokens(data, rows) * min(request.limit / rows, 1.0) if rows else 0.0
    return _Need(tokens * REPLAY_STEPS * sizes.step_bytes(base), 1e5, sizes.weights_bytes(base) * 1.3 + 5e8)


def _tuning(session: Session, request: Tune) -> _Need:
    base = _found(session, Base, request.base_id)
    return _Need(
        sizes.tuning_bytes(base, request.limit, request.max_tokens), 1e5, sizes.weights_bytes(base) * 1.3 + 5e8
    )


def _file(_session: Session, request: ImportPrompts | ImportAnswered | ImportDraft | FetchModel) -> _Need:
    """Files on this machine; what a hub has is not known before it is asked."""
    held = sizes.folder_bytes(request.path if hasattr(request, "path") else request.location)
    return _Need(held, held)


def _export(session: Session, request: Export) -> _Need:
    """The checkpoint's files, read, written and read again."""
    held = sizes.folder_bytes(_found(session, Checkpoint, request.checkpoint_id).path)
    return _Need(held, 2 * held, 3e8)


NEEDS: dict[type[Request], Callable[[Session, Any], _Need]] = {
    GenerateData: _generation,
    Train: _training,
    Evaluate: _evaluation,
    PlanRequest: _plan,
    ReplayRequest: _replay,
    Tune: _tuning,
    Export: _export,
    **dict.fromkeys((ImportPrompts, ImportAnswered, ImportDraft, FetchModel), _file),
}


def _found(session: Session, table: type[Table], row_id: str) -> Any:
    if row := session.get(table, row_id):
        return row
    raise NotFound(f"This {WORDS[table.__tablename__]} is gone; choose another.")


def _made(need: _Need, pace: Pace | None, start: float, home: Path) -> Estimate:
    import psutil

    seconds = pace.fixed + need.work / pace.rate if pace and need.work else None
    if need.minutes:
        seconds = min(seconds or need.minutes * 60, need.minutes * 60 + start)
    free = shutil.disk_usage(existing(home)).free, psutil.virtual_memory().available
    basis = pace.basis if pace else UNASKED if need.work else UNKNOWN
    repeats = pace is not None and bool(need.work) and need.repeated > 1
    longest = pace.fixed + need.repeated * need.work / pace.rate if repeats else None
    return Estimate(seconds, need.work, need.disk, need.memory, basis, *free, need.steps, need.rhythm, longest)
