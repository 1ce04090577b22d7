"""Helpers for training drills: a small dataset, a training job on a tiny base, and a watch over its processes."""

import json
import os
import threading
import time
from pathlib import Path

import psutil

from models.identity import weights_sha256
from tests.workers.conftest import Bench
from tracking import db
from tracking.tables import Base, Dataset, Job
from workers.jobs.requests import Train
from workers.jobs.submit import submit

SETTINGS = {"epochs": 0.0, "batch_tokens": 256, "eval_every": 20, "max_length": 64, "base_dtype": "float32"}


def submit_training(bench: Bench, tiny_base: Path, steps: int, save_every: int, **fields: object) -> Job:
    """A Medusa training of `steps` steps on two dozen short conversations."""
    folder = bench.settings.home / "datasets" / "talk"
    folder.mkdir(parents=True)
    rows = [_conversation(n) for n in range(24)]
    (folder / "shard-00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with db.writing(bench.settings) as session:
        base = Base(name="tiny", source="folder", location=str(tiny_base), path=str(tiny_base), state="ready")
        base.weights_sha256 = weights_sha256(tiny_base)
        data = Dataset(name="talk", kind="conversations", path=str(folder), rows=len(rows), state="ready")
        session.add_all([base, data])
    settings = {**SETTINGS, "max_steps": steps, "save_every": save_every}
    request = Train(method="medusa", base_id=base.id, dataset_id=data.id, settings=settings, **fields)
    return submit(request, name="heads", settings=bench.settings)


def _conversation(number: int) -> dict[str, object]:
    answer = f"the answer to {number} is {number * number}, and a fox jumps over {number} dogs"
    messages = [{"role": "user", "content": f"tell me {number}"}, {"role": "assistant", "content": answer}]
    return {"id": f"row-{number}", "messages": messages}


class Watch:
    """Polls for the processes that work on a job; `most` is the highest number at once, `seen` all their pids."""

    def __init__(self, job_id: str):
        self.job_id, self.most, self.seen = job_id, 0, set[int]()
        self._others: set[int] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(0.03):
            now = time.time()
            working = [pid for pid in psutil.pids() if pid not in self._others and self._works(pid, now)]
            self.most, self.seen = max(self.most, len(working)), self.seen | set(working)

    def _works(self, pid: int, now: float) -> bool:
        """Whether the process works on the job. Others older than two seconds are remembered and skipped."""
        try:
            process = psutil.Process(pid)
            log = os.readlink(f"/proc/{pid}/fd/1")  # also a forked process is found by it
            of_job = os.path.basename(log).startswith(self.job_id) and os.getsid(pid) == pid
            if not of_job and now - process.create_time() > 3:  # psutil rounds the time of the boot down to seconds
                self._others.add(pid)
            return of_job and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            return False
