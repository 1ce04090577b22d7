"""Rough estimates of a job before it starts: time, steps, disk and memory, with their basis. No torch.

A forward pass costs about 2 · parameters floating-point operations per token, a backward pass twice as much
(Kaplan et al. 2020, section 2.1); decoding a single response reads all weights once per step. A job's row stores the
work that was estimated at submission (`Job.work`). Its duration then gives the pace of later jobs of the same base,
including what the estimate ignores: answers that end early, padding, evaluations during training. Before that, a probe
of the machine does.
"""

import json
import math
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from sqlalchemy import select
from sqlalchemy.orm import Session

from speculoos.resources import nearest_existing
from tracking.states import JobState
from tracking.tables import Evaluation, Job
from workers.jobs.request import Need, Request

SPARE_DISK = 500 * 10**6
UNKNOWN = "an input that is not ready yet"
DEFAULTS = "default values, before the first measurement"
UNMEASURED = "an endpoint without previous jobs"
START_SECONDS = {"gpu": 6.0, "io": 0.5}
"""Seconds to start the process and load its files, by queue; `Rate.loading` is added."""
MAX_PAST_JOBS = 200  # maximum number of past jobs to read
MEDIAN_JOBS = 3  # number of latest matching jobs whose median pace is used
PROBE = "machine.json"  # file in the home, which the inference server writes at every start (`models.runtime.speed`)
OPERATIONS, MEMORY = 1e11, 2e10
"""Operations per second in matrix products and bytes read per second of a CPU, before a probe has run."""
TUNING_SHARE = 0.4  # `Rate.share` of a tuning, measured with the starter model on two cores like all shares
MIN_WORK_SHARE = 0.5  # minimum share of work in the time of a past job for its pace to be used
MAX_FACTOR = 30.0  # maximum factor between the pace of past jobs and of the probe


@dataclass(frozen=True)
class Estimate(Need):
    """What a job needs, `seconds` (None: unknown) with the basis of that figure, and what this machine has free."""

    seconds: float | None = None
    basis: str = ""
    free_disk: float = 0.0
    free_memory: float = 0.0
    gpu_bytes: float = 0.0  # memory of a GPU of this machine; 0 without one
    total_memory: float = math.inf

    @property
    def gpu_memory(self) -> float:
        """Bytes that a training needs on each GPU; 0 without one, and for other jobs."""
        return self.training_memory.device_memory("cuda") if self.training_memory and self.gpu_bytes else 0.0

    @property
    def refusal(self) -> str:
        """Why a training cannot run on the device that it would use by default, and what to change; "" if it can."""
        training = self.training_memory
        if training is None or training.config.device != "auto":
            return ""
        device, limit = ("cuda", self.gpu_bytes) if self.gpu_bytes else ("cpu", self.total_memory)
        if (need := training.device_memory(device)) <= limit:
            return ""
        where = "on each GPU, which has" if self.gpu_bytes else "of memory, and this machine has"
        option = training.option_that_fits(device, limit)
        advice = f"it would fit with {option}" if option else "choose a smaller base model"
        return f"This training needs about {need / 1e9:,.1f} GB {where} {limit / 1e9:,.1f} GB; {advice}."

    @property
    def warnings(self) -> list[str]:
        """One sentence for each resource that may not suffice."""
        sentences = []
        if self.disk + SPARE_DISK > self.free_disk:
            sentences.append("The disk of the home folder may be too small for this; free some space first.")
        if self.memory > self.free_memory:
            sentences.append(
                "This may need more memory than is available; use a smaller batch or a smaller base model."
            )
        return sentences


@dataclass(frozen=True)
class Pace:
    """`rate`: work per second; `basis`: its source, for people; `fixed_seconds` do not grow with the work."""

    rate: float
    basis: str
    fixed_seconds: float


def estimate(session: Session, request: Request, home: Path) -> Estimate:
    """Estimate of a request. Raises NotFound if one of its rows was deleted."""
    shards = request.shard_requests(session)
    if shards is None:
        need = request.need(session)
        return _estimate(request, need, _pace(session, request, home, need.fixed_bytes) if need.work else None, home)
    if not shards:
        return _estimate(request, Need(), None, home)
    estimates = estimate_shards(session, shards, home)  # they run one after the other, each in its own process
    all_timed = all(shard.seconds for shard in estimates)
    return replace(
        estimates[0],
        seconds=sum(shard.seconds or 0.0 for shard in estimates) if all_timed else None,
        work=sum(shard.work for shard in estimates),
        disk=sum(shard.disk for shard in estimates),
        memory=max(shard.memory for shard in estimates),
        basis=", ".join(dict.fromkeys(shard.basis for shard in estimates)),
    )


def estimate_shards(session: Session, shards: Sequence[Request], home: Path) -> list[Estimate]:
    """Estimate of each shard as a separate job. Past jobs are read once per base."""
    paces: dict[str, Pace | None] = {}
    estimates = []
    for shard in shards:
        need = shard.need(session)
        if need.work and shard.base_id not in paces:
            paces[shard.base_id] = _pace(session, shard, home, need.fixed_bytes)
        estimates.append(_estimate(shard, need, paces[shard.base_id] if need.work else None, home))
    return estimates


def _estimate(request: Request, need: Need, pace: Pace | None, home: Path) -> Estimate:
    seconds = pace.fixed_seconds + need.work / pace.rate if pace else None
    if need.minutes:
        limit = need.minutes * 60 + _fixed_seconds(request, need.fixed_bytes, home)
        seconds = min(seconds or need.minutes * 60, limit)
    basis = pace.basis if pace else UNMEASURED if need.work else UNKNOWN
    memory, probed = psutil.virtual_memory(), _probe_values(home)
    free = {"free_disk": shutil.disk_usage(nearest_existing(home)).free, "free_memory": memory.available}
    if training := need.training_memory:
        free["gpu_bytes"] = 0.0 if training.config.device == "cpu" else probed.get("gpu_bytes", 0.0)
        free["total_memory"] = memory.total if probed else math.inf  # unknown: the job may run on another machine
        if free["gpu_bytes"] and training.config.device == "auto" and request.all_processes == 1:
            training = training.divided(free["gpu_bytes"], int(probed.get("gpus", 1)))
        need = replace(
            need, training_memory=training, memory=training.main_memory("cuda" if free["gpu_bytes"] else "cpu")
        )
    return Estimate(**vars(need), seconds=seconds, basis=basis, **free)


def _pace(session: Session, request: Request, home: Path, fixed_bytes: float) -> Pace | None:
    """The pace of the latest jobs like it with the same base, or of the probe; None without either."""
    fixed = _fixed_seconds(request, fixed_bytes, home)
    if request.rate.bytes:
        return Pace(request.rate.bytes, "the usual speed for such files", fixed)
    past = ((job, _seconds(job)) for job in _past(session, request))
    usable = [(job, seconds - fixed) for job, seconds in past if seconds - fixed >= MIN_WORK_SHARE * seconds]
    rates = [job.work * _passes(session, job) / worked for job, worked in usable[:MEDIAN_JOBS]]
    basis = "the last similar job" if len(rates) == 1 else f"the last {len(rates)} similar jobs"
    rate = statistics.median(rates) if rates else 0.0
    if getattr(request, "endpoint", "") or not request.rate.share:
        return Pace(rate, basis, fixed) if rates else None
    speeds, probed = _probe(home)
    expected = request.rate.share * speeds[request.rate.unit]
    if not rates:
        return Pace(expected, probed, fixed)
    return Pace(min(max(rate, expected / MAX_FACTOR), expected * MAX_FACTOR), basis, fixed)


def _passes(session: Session, job: Job) -> int:
    """How many times an evaluation ran its questions: more than once if the machine was busy; 1 for other jobs."""
    row = session.get(Evaluation, job.request.get("evaluation_id") or "")
    return max(int((row.result or {}).get("passes") or 1), 1) if row else 1


def _seconds(job: Job) -> float:
    return (job.finished_at - job.started_at).total_seconds()


def _probe(home: Path) -> tuple[dict[str, float], str]:
    """The probe of a home (`models.runtime.speed`) or defaults, and its description: operations per second with packed
    weights (`inference_flops`) and trainable ones (`training_flops`), and `bytes_read` per second."""
    values = _probe_values(home)
    try:
        flops, memory = values["operations_per_second"], values["bytes_per_second"]
    except KeyError:
        defaults = {"inference_flops": OPERATIONS, "bytes_read": MEMORY, "training_flops": OPERATIONS}
        return defaults, DEFAULTS
    training = values.get("learned_operations_per_second", flops)  # not in older files
    return {"inference_flops": flops, "bytes_read": memory, "training_flops": training}, "a short probe of this machine"


def _probe_values(home: Path) -> dict[str, float]:
    """The content of the probe's file; {} without a readable one."""
    try:
        values = json.loads((home / PROBE).read_text(encoding="utf-8"))
        return {name: float(value) for name, value in values.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _fixed_seconds(request: Request, fixed_bytes: float, home: Path) -> float:
    """Seconds that do not grow with the work: the start, and the reading of `fixed_bytes` bytes of weights."""
    start = START_SECONDS[request.queue] + request.rate.loading
    return start + fixed_bytes / (TUNING_SHARE * _probe(home)[0]["bytes_read"])


def _past(session: Session, request: Request) -> list[Job]:
    where = (Job.kind == request.kind, Job.state == JobState.SUCCEEDED, Job.work > 0, Job.attempt == 1, Job.shards == 0)
    query = select(Job).where(*where).order_by(Job.finished_at.desc()).limit(MAX_PAST_JOBS)
    own = {key: getattr(request, key, None) or "" for key in ("method", "endpoint", "base_id")}
    return [
        job
        for job in session.scalars(query)
        if own == {key: job.request.get(key) or "" for key in own} and not _hit_time_limit(job)
    ]


def _hit_time_limit(job: Job) -> bool:
    minutes = job.request.get("max_minutes") or (job.request.get("settings") or {}).get("max_minutes")
    return bool(minutes) and _seconds(job) > 0.9 * 60 * minutes
