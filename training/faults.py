"""Out of memory, a full disk and NaN as one sentence each, with what to change."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from speculoos.errors import BadInput, Unavailable

MEMORY_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "bad allocation", "std::bad_alloc")
DISK_SIGNS = ("no space left", "disk quota exceeded")
MEMORY_HINT = "Lower batch_tokens, max_length or cache_features_mb, or choose base_dtype bfloat16."


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn errors of the machine inside into Unavailable, with a hint."""
    try:
        yield
    except MemoryError:
        raise Unavailable("Training ran out of memory.", MEMORY_HINT) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Unavailable("Training stopped because the disk is full.", "Make room, then resume.") from None
        raise
    except Exception as error:
        text = str(error).lower()
        if "OutOfMemory" in type(error).__name__ or any(sign in text for sign in MEMORY_SIGNS):
            raise Unavailable("Training ran out of memory.", MEMORY_HINT) from None
        if any(sign in text for sign in DISK_SIGNS):
            raise Unavailable("Training stopped because the disk is full.", "Make room, then resume.") from None
        raise


def not_finite(step: int, lr: float, precision: str) -> BadInput:
    """The error for a loss or gradient that is NaN or infinite."""
    other = " or mixed_precision no" if precision == "fp16" else ""
    return BadInput(
        f"The loss is no longer a number at step {step} (lr {lr:.2g}); train with a lower lr{other}.",
        "Resuming would meet it again: clone the job with a tenth of the lr and a warmup_ratio of 0.1.",
    )
