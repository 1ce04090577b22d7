"""Logs training metrics to TensorBoard, Weights & Biases, MLflow or trackio through accelerate's trackers.

Each tracker has its own thread: one that is missing, fails or hangs is disabled with one line in the job's log, without
blocking the training. A resumed attempt continues the tracker's run: a note in the home folder holds the run's name and
last logged step, and metrics that the tracker misses are read from database rows.
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
from workers.child.context import JobContext

PROJECT = "speculoos"
WAITING = 10_000
"""Maximum number of queued reports; a slower tracker is disabled."""
LAST_SECONDS = 10.0
"""Timeout for trackers to finish at the end of an attempt."""
HURRIED_SECONDS = 2.0
"""The same if the worker itself is stopping."""
LONGEST = 200
LOOK_SECONDS = 0.2
NOTE_SECONDS = 1.0
"""Interval of note writes. Reports since the last write of a killed attempt are logged again, which is harmless."""


@dataclass(frozen=True)
class TrackedTraining:
    """The job of a training, its config, and the step it resumes from (-1: none)."""

    job_id: str
    name: str
    config: Mapping[str, Any]
    resumed: int = -1

    @property
    def run(self) -> str:
        """A unique and readable name of the run."""
        words = re.sub(r"[^\w.-]+", "-", self.name)[:60].strip("-.")
        return f"{words or 'training'}-{self.job_id[:12]}"


@contextmanager
def tracking_metrics(context: JobContext, config: Mapping[str, Any], resumed: int = -1) -> Iterator[None]:
    """Send metrics reported in the block to the configured trackers; `resumed` is the step the work resumes from."""
    if not context.settings.trackers:
        yield
        return
    for name, value in tracker_environment(context.settings).items():
        os.environ.setdefault(name, value)
    with db.reading(context.settings) as session:
        training = TrackedTraining(context.job_id, jobs.get(session, context.job_id).name, scalars(config), resumed)
    threads = [TrackerThread(name, training, context) for name in context.settings.trackers]
    context.on_metrics = lambda step, values: [thread.put(step, values) for thread in threads]
    try:
        yield
    finally:
        context.on_metrics = lambda step, values: None
        _finish(threads, HURRIED_SECONDS if context.interrupted.is_set() else LAST_SECONDS)


def tracker_environment(settings: Settings) -> dict[str, str]:
    """Default environment variables of the trackers: all output stays in the home folder."""
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
    """The config as numbers, booleans and strings, as trackers accept it; other values as JSON."""
    known = {key: value for key, value in config.items() if value is not None}
    return {key: v if isinstance(v, bool | int | float | str) else json.dumps(v) for key, v in known.items()}


def _finish(threads: list["TrackerThread"], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.ended.set()
    for thread in threads:
        thread.wait(max(deadline - time.monotonic(), 0.0))


class TrackerThread:
    """Sends reports to one tracker from its own thread; `put` never blocks."""

    def __init__(self, name: str, training: TrackedTraining, context: JobContext):
        self.name, self.training, self.context = name, training, context
        self.ended = threading.Event()
        self.note = TrackerRunNote(context.settings.trackers_folder / "notes" / f"{training.job_id}-{name}.json")
        self._reports: queue.Queue[tuple[int, dict[str, float]]] = queue.Queue(WAITING)
        self._disabled = False
        self._thread = threading.Thread(target=self._run, name=f"tracker-{name}", daemon=True)

    def put(self, step: int, values: Mapping[str, float]) -> None:
        """Queue a report. The first call starts the thread: accelerate's trackers need the training's accelerator."""
        if self._disabled:
            return
        try:
            self._reports.put_nowait((step, {k: float(v) for k, v in values.items() if math.isfinite(v)}))
        except queue.Full:
            self._disable("it is too slow")
        if self._thread.ident is None:
            self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` until all reports are sent, else disable the tracker."""
        if self._thread.ident is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._disable("it does not respond")

    def _run(self) -> None:
        try:
            tracker, first = self._start_run()
            for step, values in self._missing_reports(first):
                self._log(tracker, step, values)
            while report := self._next():
                self._log(tracker, *report)
            tracker.finish()
            self.note.write()
        except (Exception, SystemExit) as error:  # some call sys.exit without a login
            self._disable((str(error).strip().splitlines() or [type(error).__name__])[0][:LONGEST])

    def _start_run(self) -> tuple[Any, int]:
        """Create a run or resume that of earlier attempts; returns (tracker, first step to log)."""
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, filter_trackers

        folder = self.context.settings.trackers_folder
        folder.mkdir(parents=True, exist_ok=True)
        if not filter_trackers([self.name], folder):
            raise RuntimeError("its package is not installed")
        is_new, run = not self.note.path.exists(), self.note.run or self.training.run
        first = min(self.note.reached, self.training.resumed + 1)
        arguments, options = self._arguments(run, folder, is_new, first)
        tracker = LOGGER_TYPE_TO_CLASS[self.name](*arguments, **options)
        tracker.main_process_only = False  # the check would create another accelerator state
        tracker.start()
        if is_new:
            tracker.store_init_configuration(dict(self.training.config))
        self.note.run, self.note.reached = tracker.tracker.info.run_id if self.name == "mlflow" else run, first
        self.note.write()
        return tracker, first

    def _arguments(self, run: str, folder: Path, is_new: bool, first: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) of accelerate's tracker; an existing run is resumed."""
        name, training = self.name, self.training
        if name == "tensorboard":  # discard later steps of a killed attempt, which are repeated
            return (run, folder / "tensorboard"), {} if is_new else {"purge_step": first}
        if name == "wandb":
            return (PROJECT,), {"id": training.job_id, "name": training.name, "resume": "allow", "dir": str(folder)}
        if name == "mlflow":
            return (PROJECT,), {"run_name": training.name} if is_new else {"run_id": run}
        return (PROJECT,), {"name": run, "resume": "allow"}

    def _missing_reports(self, first: int) -> list[tuple[int, dict[str, float]]]:
        """Stored metrics from step `first` to the step this attempt resumes from."""
        with db.reading(self.context.settings) as session:
            series = reports.metrics(session, self.training.job_id)
        steps: dict[int, dict[str, float]] = {}
        for name, points in series.items():
            for step, value in points:
                if first <= step <= self.training.resumed:
                    steps.setdefault(step, {})[name] = value
        return sorted(steps.items())

    def _next(self) -> tuple[int, dict[str, float]] | None:
        """Wait for the next report; None after the last one."""
        while not self._disabled:
            with suppress(queue.Empty):
                return self._reports.get(timeout=LOOK_SECONDS)
            if self.ended.is_set() and self._reports.empty():
                return None
        return None

    def _log(self, tracker: Any, step: int, values: dict[str, float]) -> None:
        if values and not self._disabled:
            tracker.log(values, step=step)
            self.note.reached = step
            if time.monotonic() - self.note.written > NOTE_SECONDS:
                self.note.write()

    def _disable(self, reason: str) -> None:
        if not self._disabled:
            self._disabled = True
            message = f"{TRACKERS[self.name]} gets no more metrics of this training: {reason.rstrip('.')}."
            self.context.log(message, "warning")


class TrackerRunNote:
    """File with the name of a tracker's run and its last logged step; shared by all attempts."""

    def __init__(self, path: Path):
        self.path, self.run, self.reached, self.written = path, "", 0, 0.0
        with suppress(OSError, ValueError, KeyError, TypeError):
            fields = json.loads(path.read_text())
            self.run, self.reached = str(fields["run"]), int(fields["reached"])

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(self.path) as file:
            json.dump({"run": self.run, "reached": self.reached}, file)
        self.written = time.monotonic()
