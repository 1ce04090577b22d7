"""How often workers look, renew and give up; each number has an environment variable (tests use small ones)."""

import os
from dataclasses import dataclass, fields

from speculoos.errors import BadInput


@dataclass(frozen=True)
class JobTiming:
    """Seconds. The variable of `lease_seconds` is SPECULOOS_LEASE_SECONDS, and so on."""

    lease_seconds: float = 30.0
    """A worker that has not renewed a job's lease for this long has lost it."""
    poll_seconds: float = 0.5
    """How often a supervisor looks at its child, and how often a child writes its report."""
    grace_seconds: float = 60.0
    """How long a child may take to stop by itself once the user asked; then it is ended by force."""
    stop_seconds: float = 8.0
    """The same when the worker itself was told to stop."""
    kill_seconds: float = 3.0
    """Between asking the process group to end (TERM) and ending it (KILL)."""
    reconcile_seconds: float = 5.0
    """How often the reconciler looks for rows that nobody works on."""
    republish_seconds: float = 30.0
    """A waiting job whose message was sent this long ago, while workers are idle, gets another one."""


def timing() -> JobTiming:
    """Timing from the environment. Raises BadInput naming the variable that is wrong."""
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
