"""Memory limits of jobs.

Imports read untrusted files without CUDA: RLIMIT_DATA makes them fail with an ordinary MemoryError. Other jobs may map
far more memory than they use (CUDA reserves hundreds of gigabytes of address space), so the worker checks their
resident memory and ends them.
"""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from speculoos.settings import Settings

IMPORT_MB = 2048
READERS = ("import_prompts", "import_answered")  # job kinds that read untrusted files and always have a limit
OOM_SCORE = 500  # oom_score_adj of jobs (maximum 1000): the OOM killer prefers them to the pages and the database
MEMORY_LIMIT_HINT = "Use a smaller batch or a shorter length, or raise SPECULOOS_JOB_MEMORY_MB."
IMPORT_HINT = "Its rows expand to far more data than the file; import a smaller part of it, or save it as JSONL."


def limit_child_memory(kind: str, settings: Settings) -> None:
    """Set the child's OOM score, and RLIMIT_DATA for READERS. Called before the work starts."""
    if sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    if kind in READERS:
        # Arrow's default pool reserves a gigabyte of address space.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        limit = min(filter(None, (IMPORT_MB, settings.job_memory_mb))) * 2**20
        with suppress(ValueError, OSError):  # a lower hard limit is set
            resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def memory_limit_error(settings: Settings, pid: int) -> str:
    """An error message if the processes of a job exceed the memory limit, else ""."""
    limit = settings.job_memory_mb * 2**20
    if not limit or (used := resident_memory(pid)) <= limit:
        return ""
    return f"The memory was not enough for this job: it used {used / 1e9:.1f} GB, the limit is {limit / 1e9:.1f} GB."


def resident_memory(pid: int) -> int:
    """Resident memory of a process and its descendants in bytes."""
    total = 0
    with suppress(psutil.Error):
        for process in (leader := psutil.Process(pid), *leader.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_info().rss
    return total
