"""A job kind that holds GPUs until a file ends it. Its processes see COUNT fake GPUs."""

import fcntl
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from speculoos.reporting import check_stop
from workers.child.context import JobContext
from workers.jobs.request import Request
from workers.jobs.requests import register

COUNT = 8
EVERYONE = "everyone"
WORK = {"SPECULOOS_WORK_MODULES": __name__}
"""Environment of the workers."""


class HoldGpus(Request):
    """Hold `gpus` GPUs until a file with the name `end` or EVERYONE is in `folder`, or for `seconds`."""

    kind: ClassVar[str] = "hold_gpus"
    title: ClassVar[str] = "Hold GPUs"
    work: ClassVar[str] = __name__

    folder: str
    end: str
    gpus: int = 1
    seconds: float = 600.0


def run(request: HoldGpus, context: JobContext) -> dict[str, Any]:
    from models.base import lease_name
    from workers.child.work.measure import take_devices

    folder = Path(request.folder)
    names = [lease_name(device) for device in take_devices(context, processes=request.gpus)]
    with ExitStack() as stack:
        for name in names:  # fails if another process holds it
            fcntl.flock(stack.enter_context((folder / name).open("w")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (folder / "notes").open("a") as notes:
            notes.write(f"{request.end} {time.monotonic()} {' '.join(names)}\n")
        context.progress(0, 1, "steps", "holds")
        deadline = time.monotonic() + request.seconds
        while time.monotonic() < deadline and not any((folder / name).exists() for name in (request.end, EVERYONE)):
            check_stop(context)
            time.sleep(0.05)
    return {"gpus": names}


if __name__ in os.environ.get("SPECULOOS_WORK_MODULES", ""):
    from tests.tools import fake_gpus

    register(HoldGpus)
    fake_gpus.install_in_torch(COUNT)
