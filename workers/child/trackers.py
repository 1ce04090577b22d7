"""Logs training metrics to TensorBoard, Weights & Biases, MLflow or trackio through accelerate's trackers.

Each tracker has its own thread: one that is missing, fails or hangs is disabled with one line in the job's log, without
blocking the training. A resumed attempt continues the tracker's run: a note in the home folder holds the run's name and
last logged step, and metrics that the tracker misses are read from database rows.
"""

import json
import math
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from speculoos.files import portable_name, write_json
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


@contextmanager
def tracking_metrics(context: JobContext, config: Mapping[str, Any], resumed: int = -1) -> Iterator[None]:
    """Send metrics reported in the block to the configured trackers; `resumed` is the step the work resumes from."""
    if not context.settings.trackers:
        yield
        return
    for name, value in tracker_environment(context.settings).items():
        os.environ.setdefault(name, value)
    with db.reading(context.settings) as session:
        title = jobs.get(session, context.job_id).name
    threads = [TrackerThread(name, title, scalars(config), resumed, context) for name in context.settings.trackers]
    context.on_metrics = lambda step, values: [thread.put(step, values) for thread in threads]
    try:
        yield
    finally:
        context.on_metrics = lambda step, values: None
        deadline = time.monotonic() + (HURRIED_SECONDS if context.interrupted.is_set() else LAST_SECONDS)
        for thread in threads:
            thread.ended.set()
        for thread in threads:
            thread.wait(max(deadline - time.monotonic(), 0.0))


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


class TrackerThread(threading.Thread):
    """Sends reports to one tracker; `put` never blocks. `title`: the job's name, `resumed`: the step it resumes from
    (-1: none). A note file, shared by all attempts, has the tracker's run and its last logged step."""

    def __init__(self, tracker: str, title: str, config: dict[str, Any], resumed: int, context: JobContext):
        super().__init__(name=f"tracker-{tracker}", daemon=True)
        self.tracker, self.title, self.config, self.resumed, self.context = tracker, title, config, resumed, context
        self.ended = threading.Event()
        self.note = context.settings.trackers_folder / "notes" / f"{context.job_id}-{tracker}.json"
        self._run_name = f"{portable_name(title)[:60] or 'training'}-{context.job_id[:12]}"
        self._reached, self._noted_at = 0, 0.0
        self._reports: queue.Queue[tuple[int, dict[str, float]]] = queue.Queue(WAITING)
        self._disabled = False

    def put(self, step: int, values: Mapping[str, float]) -> None:
        """Queue a report. The first call starts the thread: accelerate's trackers need the training's accelerator."""
        if self._disabled:
            return
        try:
            self._reports.put_nowait((step, {k: float(v) for k, v in values.items() if math.isfinite(v)}))
        except queue.Full:
            self._disable("it is too slow")
        if self.ident is None:
            self.start()

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` until all reports are sent, else disable the tracker."""
        if self.ident is None:
            return
        self.join(seconds)
        if self.is_alive():
            self._disable("it does not respond")

    def run(self) -> None:
        try:
            tracker, first = self._start_run()
            for step, values in self._missing_reports(first):
                self._log(tracker, step, values)
            while report := self._next():
                self._log(tracker, *report)
            tracker.finish()
            self._write_note()
        except (Exception, SystemExit) as error:  # some call sys.exit without a login
            self._disable((str(error).strip().splitlines() or [type(error).__name__])[0][:LONGEST])

    def _start_run(self) -> tuple[Any, int]:
        """Create a run or resume that of earlier attempts; returns (tracker, first step to log)."""
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, filter_trackers

        folder = self.context.settings.trackers_folder
        self.note.parent.mkdir(parents=True, exist_ok=True)
        if not filter_trackers([self.tracker], folder):
            raise RuntimeError("its package is not installed")
        is_new = not self.note.exists()
        with suppress(OSError, ValueError, KeyError, TypeError):
            noted = json.loads(self.note.read_text())
            self._run_name, self._reached = str(noted["run"]), int(noted["reached"])
        first = min(self._reached, self.resumed + 1)
        arguments, options = self._arguments(folder, is_new, first)
        tracker = LOGGER_TYPE_TO_CLASS[self.tracker](*arguments, **options)
        tracker.main_process_only = False  # the check would create another accelerator state
        tracker.start()
        if is_new:
            tracker.store_init_configuration(self.config)
        if self.tracker == "mlflow":
            self._run_name = tracker.tracker.info.run_id
        self._reached = first
        self._write_note()
        return tracker, first

    def _arguments(self, folder: Path, is_new: bool, first: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) of accelerate's tracker; an existing run is resumed."""
        run = self._run_name
        if self.tracker == "tensorboard":  # discard later steps of a killed attempt, which are repeated
            return (run, folder / "tensorboard"), {} if is_new else {"purge_step": first}
        if self.tracker == "wandb":
            own = {"id": self.context.job_id, "name": self.title, "resume": "allow", "dir": str(folder)}
            return (PROJECT,), own
        if self.tracker == "mlflow":
            return (PROJECT,), {"run_name": self.title} if is_new else {"run_id": run}
        return (PROJECT,), {"name": run, "resume": "allow"}

    def _missing_reports(self, first: int) -> list[tuple[int, dict[str, float]]]:
        """Stored metrics from step `first` to the step this attempt resumes from."""
        with db.reading(self.context.settings) as session:
            series = reports.metrics(session, self.context.job_id)
        steps: dict[int, dict[str, float]] = {}
        for name, points in series.items():
            for step, value in points:
                if first <= step <= self.resumed:
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
            self._reached = step
            if time.monotonic() - self._noted_at > NOTE_SECONDS:
                self._write_note()

    def _write_note(self) -> None:
        write_json(self.note, {"run": self._run_name, "reached": self._reached})
        self._noted_at = time.monotonic()

    def _disable(self, reason: str) -> None:
        if not self._disabled:
            self._disabled = True
            message = f"{TRACKERS[self.tracker]} gets no more metrics of this training: {reason.rstrip('.')}."
            self.context.log(message, "warning")
