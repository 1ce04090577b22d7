"""How much memory a job may take, and whom the system ends first when it has none left.

Two means, because one does not fit all. An import reads foreign files and loads no device library: the system itself
refuses it more (RLIMIT_DATA), so it ends by an ordinary MemoryError before anyone else suffers. Work on a device maps
far more than it uses (CUDA reserves address space by the hundred gigabytes), so its worker looks at what its processes
really hold (resident memory) and ends them.
"""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from speculoos.settings import Settings

IMPORT_MB = 2048
READERS = ("import_prompts", "import_answered")
"""Kinds of jobs that read foreign files and are bounded always."""
OOM_SCORE = 500
"""Of 1000: the system's choice when memory is out falls on a job, never on the pages or the database."""
HINT = (
    "Use a smaller batch or a shorter length, or raise what one job may take (on the Settings page, or "
    "SPECULOOS_JOB_MEMORY_MB)."
)
IMPORT_HINT = "Its rows mean far more than the file holds; give a smaller part of it, or save it as JSONL."


def bound_child(kind: str, settings: Settings) -> None:
    """Called in the child before its work: the system's limit for readers, and the first place when memory is out."""
    if sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    if kind in READERS:
        os.environ.setdefault(
            "ARROW_DEFAULT_MEMORY_POOL", "system"
        )  # its own one takes a gigabyte of addresses at once
        most = min(filter(None, (IMPORT_MB, settings.job_memory_mb))) * 2**20
        with suppress(ValueError, OSError):  # a lower limit was set from outside
            resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def too_much(settings: Settings, pid: int) -> str:
    """A sentence when the processes of a job hold more memory than one may; "" while they do not."""
    most = settings.job_memory_mb * 2**20
    if not most or (held := resident(pid)) <= most:
        return ""
    return f"The memory was not enough for this job: it took {held / 1e9:.1f} GB, and may take {most / 1e9:.1f} GB."


def resident(pid: int) -> int:
    """Bytes that a process and those it started hold in memory."""
    held = 0
    with suppress(psutil.Error):
        for process in (leader := psutil.Process(pid), *leader.children(recursive=True)):
            with suppress(psutil.Error):
                held += process.memory_info().rss
    return held
