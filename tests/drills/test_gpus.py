"""Workers and jobs killed at random while jobs for one and for four of eight GPUs keep arriving, beside a chat."""

import contextlib
import fcntl
import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from speculoos import machine
from tests.tools import fake_gpus
from tests.tools.figures import Figures, spread
from tests.workers.conftest import Bench, wait_until
from tests.workers.gpu_work import COUNT, WORK
from tests.workers.test_many_gpus import leased, notes, submit
from tracking import db, leases
from tracking.tables import Job

pytestmark = [pytest.mark.drill, pytest.mark.timeout(1200)]
FORKED = True
KILLS = int(os.environ.get("DRILLS_KILLS", "20"))
LATER = 20.0
"""Seconds after a job's submission; no job submitted later may begin before it."""


class Chat:
    """Measures on the GPU of the inference server repeatedly, until `stop` is set."""

    def __init__(self, bench: Bench, folder: Path):
        self.bench, self.file, self.measured, self.overlaps = bench, folder / fake_gpus.uuid(0), 0, 0
        self.stop, self._thread = threading.Event(), threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self.stop.set()
        self._thread.join()

    def _run(self) -> None:
        key = machine.device_key(fake_gpus.uuid(0), self.bench.settings.home)
        while not self.stop.wait(0.2):
            with leases.exclusive_device(self.bench.settings, fake_gpus.uuid(0), "chat"):
                with db.reading(self.bench.settings) as session:
                    exclusive = leases.holder(session, key) == "run:chat"
                if exclusive:
                    self._use()

    def _use(self) -> None:
        self.measured += 1
        with self.file.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.overlaps += 1
            time.sleep(0.3)


def test_gpus_are_shared_while_workers_are_killed(bench: Bench, tmp_path: Path, figures: Figures) -> None:
    rng = random.Random(25)
    bench.environment |= WORK
    bench.reconciler()
    workers = [bench.worker("gpu") for _ in range(COUNT)]
    chat, submitted, killed = Chat(bench, tmp_path), {}, {"worker": 0, "child": 0}

    def arrive(number: int) -> None:
        for part, gpus in enumerate((4, 1) if number % 6 == 0 else (1, 1)):
            name = f"{number}-{part}-{'wide' if gpus > 1 else 'one'}"
            job = submit(bench, tmp_path, name, gpus, seconds=rng.uniform(2, 6))
            submitted[name] = (job, time.monotonic())

    def kill(number: int) -> None:
        with db.reading(bench.settings) as session:
            children = [job.child["pid"] for job in session.query(Job).where(Job.state == "RUNNING") if job.child]
        if number % 2 and children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(children), signal.SIGKILL)
                killed["child"] += 1
        else:
            index = rng.randrange(COUNT)
            workers[index].kill()
            workers[index].wait()
            workers[index] = bench.worker("gpu")
            killed["worker"] += 1

    for number in range(KILLS):
        arrive(number)
        chat.stop.wait(1.5)
        kill(number)
    for job, _ in submitted.values():
        bench.wait(job.id, "SUCCEEDED", 600)
    chat.end()
    wait_until(lambda: leased(bench) == {("", "")}, 60, "the end of all leases")
    began: dict[str, float] = {}
    for name, seconds, *_ in notes(tmp_path):
        began.setdefault(name, float(seconds))
    with db.reading(bench.settings) as session:
        attempts = sum(job.attempt for job in session.query(Job))
    late = [
        name
        for name, (_, at) in submitted.items()
        if any(began[other] < began[name] for other, (_, later) in submitted.items() if later > at + LATER)
    ]
    figures.record(
        kills=sum(killed.values()),
        jobs=len(submitted),
        lost=len(submitted.keys() - began.keys()),
        attempts=attempts,
        overlaps=chat.overlaps,
        chats=chat.measured,
        overtaken=len(late),
        seconds_until_four_gpus=spread(began[name] - at for name, (_, at) in submitted.items() if "wide" in name),
    )
    assert chat.overlaps == 0 and chat.measured, "a job that finds its GPU in use fails by itself"
    assert not late, "no job waits for ones that came much later"
