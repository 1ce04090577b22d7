"""Error messages for out of memory, a full disk and NaN, each with a fix."""

from collections.abc import Iterator
from contextlib import contextmanager

from speculoos.errors import BadInput, OutOfMemory, SpeculoosError, Unavailable
from speculoos.faults import disk_full, out_of_memory

MEMORY_HINT = "Lower batch_tokens, max_length or cache_features_mb, or choose base_dtype bfloat16."
DISK_HINT = "Free some disk space, then retry: training resumes from the last saved state."


@contextmanager
def translate_errors() -> Iterator[None]:
    """Convert out-of-memory and full-disk errors to SpeculoosErrors with a hint."""
    try:
        yield
    except SpeculoosError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise OutOfMemory("Training ran out of memory.", MEMORY_HINT) from None
        if disk_full(error):
            raise Unavailable("Training stopped because the disk is full.", DISK_HINT) from None
        raise


def nonfinite_loss_error(step: int, lr: float, precision: str) -> BadInput:
    """The error for a loss or gradient that is NaN or infinite."""
    other = " or mixed_precision no" if precision == "fp16" else ""
    return BadInput(
        f"The loss is no longer a number at step {step} (lr {lr:.2g}); train with a lower lr{other}.",
        "Resuming would fail again: clone the job with a tenth of the lr and a warmup_ratio of 0.1.",
    )
