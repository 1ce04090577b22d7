"""What each kind of job does: WORK[kind](request, context) -> result, or into which shards it is divided. Bodies are
imported when they are needed.

Further kinds: SPECULOOS_WORK_MODULES names modules that add to WORK and to workers.ask.requests.REQUESTS when imported.
"""

import importlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from tracking.shards import Division
from workers.ask.requests import KINDS, Request
from workers.child.context import Context

Body = Callable[[Request, Context], dict[str, Any] | Division | None]


def _run(module: str, request: Request, context: Context) -> dict[str, Any] | Division | None:
    """By the `run` of a module, imported when it is called: the registry itself brings no torch."""
    return importlib.import_module(module).run(request, context)


WORK: dict[str, Body] = {request.kind: partial(_run, f"workers.child.work.{request.kind}") for request in KINDS}


def load_extras() -> None:
    """Import the operator's further modules of work."""
    for name in os.environ.get("SPECULOOS_WORK_MODULES", "").split(","):
        if name.strip():
            importlib.import_module(name.strip())
