"""What tests ask of processes that are not their children."""

import psutil


def gone(pid: int) -> bool:
    """Whether it ended, also where nobody has reaped it yet; one that ends while we look is gone."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
