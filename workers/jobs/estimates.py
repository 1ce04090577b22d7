"""Rough estimates of a job before it starts: time, steps, disk and memory, with their basis. No torch.

A forward pass costs about 2 · parameters floating-point operations per token, a backward pass twice as much
(Kaplan et al. 2020, section 2.1); decoding a single response reads all weights once per step. `workers.jobs.pace` says
how much of that a machine does per second.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy.orm import Session

from speculoos.resources import available_memory, nearest_existing
from workers.jobs.pace import Pace, pace
from workers.jobs.request import Need, Request

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
    if cells is None:
        return of_cells(session, [request], home)[0]
    return _sum(of_cells(session, cells, home)) if cells else _estimate(Need(), None, home)


def of_cells(session: Session, cells: Sequence[Request], home: Path) -> list[Estimate]:
    """Estimate of each cell of a matrix as a separate job. Past jobs are read once per base."""
    paces: dict[tuple[str, str], Pace | None] = {}
    estimates = []
    for cell in cells:
        need, key = cell.need(session), (getattr(cell, "base_id", ""), getattr(cell, "endpoint", ""))
        if need.work and key not in paces:
            paces[key] = pace(session, cell, home, need)
        estimates.append(_estimate(need, paces.get(key), home))
    return estimates


def _sum(cells: Sequence[Estimate]) -> Estimate:
    """Sum over cells that run one after the other, each in its own process."""
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


def _estimate(need: Need, pace: Pace | None, home: Path) -> Estimate:
    seconds = longest = None
    if pace and need.work:
        seconds = pace.fixed + need.work / pace.rate
        longest = pace.fixed + need.repeated * need.work / pace.rate if need.repeated > 1 else None
    if need.minutes:
        limit = need.minutes * 60 + (pace.fixed if pace else 0.0)
        seconds = min(seconds or limit, limit)
    free = shutil.disk_usage(nearest_existing(home)).free, available_memory()[0]
    basis = UNKNOWN if not need.work else pace.basis if pace else UNMEASURED
    return Estimate(seconds, need.work, need.disk, need.memory, basis, *free, need.steps, need.rhythm, longest)
