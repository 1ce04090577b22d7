"""Detects out-of-memory and full-disk errors, which libraries report in many ways."""

import errno

MEMORY_SIGNS = (
    *("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory"),
    *("memory allocation", "bad allocation", "bad_alloc", "failed to map segment"),
    "could not create a primitive",  # oneDNN
)
DISK_SIGNS = (
    "no space left",
    "disk quota exceeded",
    "file too large",
    "disk is full",
    "is full; free",
)


def out_of_memory(error: BaseException) -> bool:
    """True for MemoryError, ENOMEM, torch's OutOfMemoryError, and errors whose message is about missing memory."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return getattr(error, "errno", None) == errno.ENOMEM or mentions_no_memory(str(error))


def disk_full(error: BaseException) -> bool:
    """True for a full disk, an exceeded quota, and a file larger than the file system or the system allows."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or _says(str(error), DISK_SIGNS)


def mentions_no_memory(text: str) -> bool:
    """True for an error message, or the last line of a process' output, about missing memory."""
    return _says(text, MEMORY_SIGNS)


def _says(text: str, signs: tuple[str, ...]) -> bool:
    return any(sign in text.lower() for sign in signs)
