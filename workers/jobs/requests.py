"""The registry of job kinds. A new kind is a module with a Request class and an entry in KINDS.

Operators can add kinds: SPECULOOS_WORK_MODULES lists modules that call `register` when they are imported. These kinds
get a command and a form generated from their fields.
"""

import importlib
import os
from functools import cache
from typing import Any

from speculoos.errors import BadInput
from workers.jobs.evaluate import Evaluate, PlanRequest, ReplayRequest, Tune
from workers.jobs.generate_data import GenerateData, GenerateShard
from workers.jobs.matrix import Matrix
from workers.jobs.prove import Prove
from workers.jobs.request import Request
from workers.jobs.serve import InstallServer, Serve
from workers.jobs.train import Train
from workers.jobs.transfers import Export, FetchModel, ImportAnswered, ImportDraft, ImportPrompts, Quantize

KINDS: tuple[type[Request], ...] = (
    FetchModel,
    Quantize,
    ImportDraft,
    ImportPrompts,
    ImportAnswered,
    GenerateData,
    GenerateShard,
    Train,
    Evaluate,
    Matrix,
    PlanRequest,
    ReplayRequest,
    Tune,
    Prove,
    Export,
    Serve,
    InstallServer,
)
REQUESTS: dict[str, type[Request]] = {kind.kind: kind for kind in KINDS}


def register(kind: type[Request]) -> None:
    """Register a job kind."""
    REQUESTS[kind.kind] = kind


@cache
def load_custom_kinds() -> None:
    """Import the modules of SPECULOOS_WORK_MODULES, which register job kinds. Raises BadInput."""
    for name in filter(None, map(str.strip, os.environ.get("SPECULOOS_WORK_MODULES", "").split(","))):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise BadInput(f"SPECULOOS_WORK_MODULES: {name} cannot be imported ({error}).") from None


def custom_kinds() -> list[type[Request]]:
    """Custom job kinds, registered by modules of the operator. Raises BadInput for a module that cannot be imported."""
    load_custom_kinds()
    return [kind for kind in REQUESTS.values() if kind not in KINDS]


def from_json(kind: str, data: dict[str, Any]) -> Request:
    """The request of a job's row. Raises BadInput for an unknown kind or field."""
    load_custom_kinds()
    if kind not in REQUESTS:
        raise BadInput(f"Unknown kind of job {kind!r}; known are {', '.join(REQUESTS)}.")
    return REQUESTS[kind].from_row(data)


def kind_title(kind: str) -> str:
    """`generate_data` → "Generate responses"."""
    return REQUESTS[kind].title if kind in REQUESTS else kind.replace("_", " ").capitalize()
