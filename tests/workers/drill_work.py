"""A job kind for drills: `count` runs steps of a fixed length, saves its position after each and notes all it does.

Workers load it by SPECULOOS_WORK_MODULES, like an operator's own job kinds.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

from corpus import sharding
from speculoos.errors import BadInput, ProcessLost
from speculoos.reporting import check_stop
from tests.workers.holds import MERGE, PROGRESS, wait_while_held
from workers.child.context import JobContext
from workers.jobs import train
from workers.jobs.request import Request
from workers.jobs.requests import register


class Count(Request):
    """Count to `steps` in `folder`; `trick` misbehaves on purpose."""

    kind: ClassVar[str] = "count"
    title: ClassVar[str] = "Count"
    queue: ClassVar[str] = "io"
    work: ClassVar[str] = "tests.workers.drill_work"

    folder: str
    steps: int = 20
    seconds: float = 0.05
    trick: str = ""


def run(request: Count, context: JobContext) -> dict[str, Any]:
    folder = Path(request.folder)
    folder.mkdir(parents=True, exist_ok=True)
    note(folder, f"start {os.getpid()} {context.attempt}")
    play(request, context)
    position = folder / "place"
    done = int(position.read_text()) if position.exists() else 0
    context.progress(done, request.steps, "steps")
    for step in range(done, request.steps):
        if request.trick == "flood":
            print(f"line {step} " + "x" * 100_000, flush=True)
        if request.trick != "deaf":
            check_stop(context)
        time.sleep(request.seconds)
        note(folder, f"step {step} {os.getpid()} {context.attempt} {time.time()}")
        position.with_suffix(".new").write_text(str(step + 1))
        position.with_suffix(".new").rename(position)
        context.progress(step + 1, request.steps, "steps")
        context.metrics(step, {"train/loss": 1.0 / (step + 1)})
    context.sample(request.steps, {"text": "done\x00"})
    return {"steps": request.steps}


def play(request: Count, context: JobContext) -> None:
    """Misbehave as `trick` says."""
    if request.trick == "bad_input":
        raise BadInput("prompts.jsonl, line 7: no prompt here.", "Mend the line.")
    if request.trick == "bug":
        raise KeyError("surprise")
    if request.trick == "lost" and context.attempt == 1:
        raise ProcessLost("Process 2 of the training was killed.")
    if request.trick == "exit":
        print("the library says: no such kernel", flush=True)
        os._exit(3)
    if request.trick == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if request.trick == "secret":
        context.log(f"token {os.environ['HF_TOKEN']} was used")
        print(f"printing {os.environ['HF_TOKEN']} too")
        raise RuntimeError(f"401 for token {os.environ['HF_TOKEN']}")
    if request.trick == "hoard":
        context.held = bytearray(os.urandom(1)) * (300 * 2**20)  # written, so really held
    if request.trick == "fill" and context.attempt == 1:
        with (Path(request.folder) / "ballast").open("ab", buffering=0) as ballast:
            while True:
                ballast.write(b"0" * 2**16)
    if request.trick in ("grandchild", "detached"):
        code = "import time; time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=request.trick == "detached")
        note(Path(request.folder), f"grandchild {child.pid}")


def install_holds() -> None:
    """Make jobs wait where their tests hold them (tests.workers.holds)."""
    progress, write_checksums = JobContext.progress, sharding.write_checksums

    def held_progress(context: JobContext, done: int, *values: Any) -> None:
        progress(context, done, *values)
        wait_while_held(context.settings.home, PROGRESS, done, lambda: check_stop(context))

    def held_write_checksums(folder: Path, *values: Any, **options: Any) -> None:
        wait_while_held(folder.parents[1], MERGE)
        write_checksums(folder, *values, **options)

    JobContext.progress, sharding.write_checksums = held_progress, held_write_checksums


def note(folder: Path, line: str) -> None:
    with (folder / "notes").open("a") as file:
        file.write(line + "\n")


if __name__ in os.environ.get(
    "SPECULOOS_WORK_MODULES", ""
):  # not in the tests' own process, whose commands are documented
    register(Count)
    install_holds()
    for module in (train, sys.modules.get("workers.child.work.train")):  # which a forked process has imported already
        if module:
            module.TUNING_QUESTIONS = 1  # each costs half a second, and `tune` has tests of its own
