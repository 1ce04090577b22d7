"""A training's metrics at TensorBoard, Weights & Biases, MLflow or trackio too, through accelerate's trackers.

Our rows stay the record. Each tracker has a thread, so that one that is missing, fails or hangs is left out with one
line in the job's log, and the training neither waits for it nor ends. An attempt that goes on from a state goes on with
its run: a note in the home says what the run is called there and how far it was told, and rows say what is missing.
"""

import json
import math
import os
import queue
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speculoos.files import new_file
from speculoos.settings import TRACKERS, Settings
from tracking import db, jobs, reports
from workers.child.context import Context

PROJECT = "speculoos"
WAITING = 10_000
"""Reports that may wait for a tracker; those of one that is slower are not waited for."""
LAST_SECONDS, HURRIED_SECONDS = 10.0, 2.0
"""How long the end of an attempt waits for trackers to finish; the second where the worker itself is told to stop."""
LONGEST = 200
LOOK_SECONDS = 0.2
NOTE_SECONDS = 1.0
"""How often a note is written; a killed attempt's last reports are then told again, which readers take for one."""


@dataclass(frozen=True)
class Told:
    """What is told of a training: the job, its settings, and the step of the state that it goes on from (-1: none)."""

    job_id: str
    name: str
    config: Mapping[str, Any]
    resumed: int = -1

    @property
    def run(self) -> str:
        """What the run is called where names are for people and must differ."""
        words = re.sub(r"[^\w.-]+", "-", self.name)[:60].strip("-.")
        return f"{words or 'training'}-{self.job_id[:12]}"


@contextmanager
def mirrored(context: Context, config: Mapping[str, Any], resumed: int = -1) -> Iterator[None]:
    """Tell the installation's trackers what the work in the block says; `resumed` is the step it goes on from."""
    if not context.settings.trackers:
        yield
        return
    for name, value in environment(context.settings).items():
        os.environ.setdefault(name, value)
    with db.reading(context.settings) as session:
        told = Told(context.job_id, jobs.get(session, context.job_id).name, scalars(config), resumed)
    mirrors = [Mirror(name, told, context) for name in context.settings.trackers]
    context.on_metrics = lambda step, values: [mirror.put(step, values) for mirror in mirrors]
    try:
        yield
    finally:
        context.on_metrics = lambda step, values: None
        _finish(mirrors, HURRIED_SECONDS if context.interrupted.is_set() else LAST_SECONDS)


def environment(settings: Settings) -> dict[str, str]:
    """What the trackers read there, where the operator has not said it: everything stays in the home."""
    folder = settings.trackers_folder
    return {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "TRACKIO_DIR": str(folder / "trackio"),
    }


def scalars(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as trackers take them: numbers, truth values and texts."""
    known = {key: value for key, value in config.items() if value is not None}
    return {key: v if isinstance(v, bool | int | float | str) else json.dumps(v) for key, v in known.items()}


def _finish(mirrors: list["Mirror"], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for mirror in mirrors:
        mirror.over.set()
    for mirror in mirrors:
        mirror.wait(max(deadline - time.monotonic(), 0.0))


class Mirror:
    """One tracker, told in a thread of its own; `put` never waits."""

    def __init__(self, name: str, told: Told, context: Context):
        self.name, self.told, self.context = name, told, context
        self.over = threading.Event()
        self.note = Note(context.settings.trackers_folder / "notes" / f"{told.job_id}-{name}.json")
        self._reports: queue.Queue[tuple[int, dict[str, float]]] = queue.Queue(WAITING)
        self._lost = False
        self._thread = threading.Thread(target=self._run, name=f"tracker-{name}", daemon=True)

    def put(self, step: int, values: Mapping[str, float]) -> None:
        """Tell it these later. The first call begins the run: accelerate's trackers need the training's accelerator."""
        if self._lost:
            return
        try:
            self._reports.put_nowait((step, {k: float(v) for k, v in values.items() if math.isfinite(v)}))
        except queue.Full:
            self._give_up("it is too slow")
        if self._thread.ident is None:
            self._thread.start()

    def wait(self, seconds: float) -> None:
        """Until it has been told everything, for so long at most."""
        if self._thread.ident is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._give_up("it does not answer")

    def _run(self) -> None:
        try:
            tracker, first = self._begin()
            for step, values in self._missing(first):
                self._tell(tracker, step, values)
            while report := self._next():
                self._tell(tracker, *report)
            tracker.finish()
            self.note.write()
        except (Exception, SystemExit) as error:  # some end the process where nobody is logged in
            self._give_up((str(error).strip().splitlines() or [type(error).__name__])[0][:LONGEST])

    def _begin(self) -> tuple[Any, int]:
        """(the tracker, the first step it is told): a run that is new, or the one of the attempts before."""
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, filter_trackers

        folder = self.context.settings.trackers_folder
        folder.mkdir(parents=True, exist_ok=True)
        if not filter_trackers([self.name], folder):
            raise RuntimeError("its package is not installed")
        is_new, run = not self.note.path.exists(), self.note.run or self.told.run
        first = min(self.note.reached, self.told.resumed + 1)
        arguments, options = self._made_of(run, folder, is_new, first)
        tracker = LOGGER_TYPE_TO_CLASS[self.name](*arguments, **options)
        tracker.main_process_only = False  # this is the one that reports; asking would make another accelerator state
        tracker.start()
        if is_new:
            tracker.store_init_configuration(dict(self.told.config))
        self.note.run, self.note.reached = tracker.tracker.info.run_id if self.name == "mlflow" else run, first
        self.note.write()
        return tracker, first

    def _made_of(self, run: str, folder: Path, is_new: bool, first: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What accelerate's tracker is made with, so that a run that is known goes on."""
        name, told = self.name, self.told
        if name == "tensorboard":  # what a killed attempt told of later steps is made again, so readers forget it
            return (run, folder / "tensorboard"), {} if is_new else {"purge_step": first}
        if name == "wandb":
            return (PROJECT,), {"id": told.job_id, "name": told.name, "resume": "allow", "dir": str(folder)}
        if name == "mlflow":
            return (PROJECT,), {"run_name": told.name} if is_new else {"run_id": run}
        return (PROJECT,), {"name": run, "resume": "allow"}

    def _missing(self, first: int) -> list[tuple[int, dict[str, float]]]:
        """What rows say of the steps before the state that this attempt goes on from, from step `first`."""
        with db.reading(self.context.settings) as session:
            series = reports.metrics(session, self.told.job_id)
        steps: dict[int, dict[str, float]] = {}
        for name, points in series.items():
            for step, value in points:
                if first <= step <= self.told.resumed:
                    steps.setdefault(step, {})[name] = value
        return sorted(steps.items())

    def _next(self) -> tuple[int, dict[str, float]] | None:
        """The next report, waited for; None when there will be none."""
        while not self._lost:
            with suppress(queue.Empty):
                return self._reports.get(timeout=LOOK_SECONDS)
            if self.over.is_set() and self._reports.empty():
                return None
        return None

    def _tell(self, tracker: Any, step: int, values: dict[str, float]) -> None:
        if values and not self._lost:
            tracker.log(values, step=step)
            self.note.reached = step
            if time.monotonic() - self.note.written > NOTE_SECONDS:
                self.note.write()

    def _give_up(self, why: str) -> None:
        if not self._lost:
            self._lost = True
            said = f"{TRACKERS[self.name]} is not told of this training any more: {why.rstrip('.')}."
            self.context.log(said, "warning")


class Note:
    """What a run is called at a tracker, and the last step it was told: a file that outlives attempts."""

    def __init__(self, path: Path):
        self.path, self.run, self.reached, self.written = path, "", 0, 0.0
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = json.loads(path.read_text())
            self.run, self.reached = str(said["run"]), int(said["reached"])

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(self.path) as file:
            json.dump({"run": self.run, "reached": self.reached}, file)
        self.written = time.monotonic()
