"""Intervals and timeouts of workers; each has an environment variable (tests use small values)."""

import os
from dataclasses import dataclass, fields

from speculoos.errors import BadInput


@dataclass(frozen=True)
class JobTiming:
    """All values in seconds. The environment variable of `lease_seconds` is SPECULOOS_LEASE_SECONDS, and so on."""

    lease_seconds: float = 30.0  # a worker loses a job whose lease it has not renewed for this long
    poll_seconds: float = 0.5  # interval at which a supervisor checks its child, and a child writes its reports
    grace_seconds: float = 60.0  # time for a child to stop after the user's request, before it is terminated
    stop_seconds: float = 8.0  # the same if the worker itself stops
    kill_seconds: float = 3.0  # time between SIGTERM and SIGKILL to the process group
    reconcile_seconds: float = 5.0  # interval at which the reconciler looks for jobs without a worker
    republish_seconds: float = 30.0  # a waiting job gets a new message this long after the last one if workers are idle


def job_timing() -> JobTiming:
    """Timing from the environment. Raises BadInput for an invalid variable."""
    return JobTiming(**{f.name: _seconds(f"SPECULOOS_{f.name.upper()}", float(f.default)) for f in fields(JobTiming)})


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        raise BadInput(f"{name}: expected a number of seconds, got {text!r}.") from None
    if value <= 0:
        raise BadInput(f"{name}: expected a positive number of seconds, got {text!r}.")
    return value
