"""Rough estimates of a job before it starts: time, steps, disk and memory, with their basis. No torch.

A forward pass costs about 2 · parameters floating-point operations per token, a backward pass twice as much
(Kaplan et al. 2020, section 2.1); decoding a single response reads all weights once per step. `workers.jobs.pace` says
how much of that a machine does per second.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy.orm import Session

from speculoos.resources import nearest_existing
from workers.jobs.pace import Pace, fixed_seconds, pace
from workers.jobs.request import FixedWork, Need, Request

SPARE_DISK = 500 * 10**6
UNKNOWN = "an input that is not ready yet"
UNMEASURED = "an endpoint without previous jobs"


@dataclass(frozen=True)
class Estimate:
    """`seconds` (None: unknown), `work` in units of `workers.jobs.pace`, bytes on disk and in memory, the basis of the
    time, and the optimizer steps of a training with their size and evaluation interval (`rhythm`). `longest`: seconds
    if a busy machine makes an evaluation repeat its questions; None without repeats."""

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
        """One sentence for each resource that may not suffice."""
        sentences = []
        if self.disk + SPARE_DISK > self.free_disk:
            sentences.append("The disk of the home folder may be too small for this; free some space first.")
        if self.memory > self.free_memory:
            sentences.append(
                "This may need more memory than is available; use a smaller batch or a smaller base model."
            )
        return sentences


def estimate(session: Session, request: Request, home: Path) -> Estimate:
    """Estimate of a request. Raises NotFound if one of its rows was deleted."""
    cells = request.cells(session)
    if cells is not None:
        return _sum(of_cells(session, cells, home), home)
    return _single(session, request, home, pace)


def of_cells(session: Session, cells: Sequence[Request], home: Path) -> list[Estimate]:
    """Estimate of each cell of a matrix as a separate job. Past jobs are read once per base."""
    paces: dict[tuple[str, str], Pace | None] = {}

    def cached(session: Session, cell: Request, home: Path, fixed: FixedWork) -> Pace | None:
        key = cell.base_id, cell.endpoint
        if key not in paces:
            paces[key] = pace(session, cell, home, fixed)
        return paces[key]

    return [_single(session, cell, home, cached) for cell in cells]


def _sum(cells: Sequence[Estimate], home: Path) -> Estimate:
    """Sum over cells that run one after the other, each in its own process."""
    if not cells:
        return _estimate(Need(), None, 0.0, home)
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


def _single(session: Session, request: Request, home: Path, find_pace: Callable[..., Pace | None]) -> Estimate:
    need = request.need(session)
    start = fixed_seconds(request, need.fixed, home)
    return _estimate(need, find_pace(session, request, home, need.fixed) if need.work else None, start, home)


def _estimate(need: Need, pace: Pace | None, start: float, home: Path) -> Estimate:
    import psutil

    seconds = pace.fixed + need.work / pace.rate if pace and need.work else None
    if need.minutes:
        seconds = min(seconds or need.minutes * 60, need.minutes * 60 + start)
    free = shutil.disk_usage(nearest_existing(home)).free, psutil.virtual_memory().available
    basis = pace.basis if pace else UNMEASURED if need.work else UNKNOWN
    repeats = pace is not None and bool(need.work) and need.repeated > 1
    longest = pace.fixed + need.repeated * need.work / pace.rate if repeats else None
    return Estimate(seconds, need.work, need.disk, need.memory, basis, *free, need.steps, need.rhythm, longest)
