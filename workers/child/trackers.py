"""Logs training metrics to TensorBoard, Weights & Biases or MLflow through accelerate's trackers.

Each tracker has its own thread: one that is missing, fails or hangs is disabled with one line in the job's log, without
blocking the training. A resumed attempt continues the tracker's run, whose name is in a note in the home folder, and
logs the steps before its own again from the database rows, as a killed attempt may have left some out.
"""

import json
import math
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from speculoos.errors import first_line
from speculoos.files import portable_name, write_json
from speculoos.settings import TRACKERS, Settings
from tracking import db, jobs, reports
from workers.child.context import JobContext

PROJECT = "speculoos"
WAITING = 10_000  # maximum number of queued reports; a slower tracker is disabled
LAST_SECONDS = 10.0  # timeout for trackers to finish at the end of an attempt
HURRIED_SECONDS = 2.0  # the same if the worker itself is stopping
MAX_REASON_LENGTH = 200
QUEUE_POLL_SECONDS = 0.2


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
    present = {key: value for key, value in config.items() if value is not None}
    scalars = {key: v if isinstance(v, bool | int | float | str) else json.dumps(v) for key, v in present.items()}
    threads = [TrackerThread(name, title, scalars, resumed, context) for name in context.settings.trackers]
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
    return {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_TRACKING_URI": f"sqlite:///{settings.trackers_folder / 'mlflow.db'}",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


class TrackerThread(threading.Thread):
    """Sends reports to one tracker; `put` never blocks. `resumed` is the step the job resumes from (-1: none)."""

    def __init__(self, tracker: str, title: str, config: dict[str, Any], resumed: int, context: JobContext):
        super().__init__(name=f"tracker-{tracker}", daemon=True)
        self.tracker, self.title, self.config, self.resumed, self.context = tracker, title, config, resumed, context
        self.ended = threading.Event()
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
            tracker = self._start_run()
            for step, values in self._all_reports():
                if values and not self._disabled:
                    tracker.log(values, step=step)
            tracker.finish()
        except (Exception, SystemExit) as error:  # some call sys.exit without a login
            self._disable(first_line(error, MAX_REASON_LENGTH))

    def _start_run(self) -> Any:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, filter_trackers

        folder, job_id = self.context.settings.trackers_folder, self.context.job_id
        note = folder / "notes" / f"{job_id}-{self.tracker}.json"
        note.parent.mkdir(parents=True, exist_ok=True)
        if not filter_trackers([self.tracker], folder):
            raise RuntimeError("its package is not installed")
        run = ""
        with suppress(OSError, ValueError, KeyError, TypeError):
            run = str(json.loads(note.read_text())["run"])
        is_new, run = not run, run or f"{portable_name(self.title)[:60] or 'training'}-{job_id[:12]}"
        arguments, options = (PROJECT,), {}
        if self.tracker == "tensorboard":  # discard the steps of earlier attempts, which are logged again
            arguments, options = (run, folder / "tensorboard"), {} if is_new else {"purge_step": 0}
        elif self.tracker == "wandb":
            options = {"id": job_id, "name": self.title, "resume": "allow", "dir": str(folder)}
        else:
            options = {"run_name": self.title} if is_new else {"run_id": run}
        tracker = LOGGER_TYPE_TO_CLASS[self.tracker](*arguments, **options)
        tracker.main_process_only = False  # the check would create another accelerator state
        tracker.start()
        if is_new:
            tracker.store_init_configuration(self.config)
            write_json(note, {"run": tracker.tracker.info.run_id if self.tracker == "mlflow" else run})
        return tracker

    def _all_reports(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Stored metrics up to the step this attempt resumes from, then reports as they come."""
        steps: dict[int, dict[str, float]] = {}
        with db.reading(self.context.settings) as session:
            for name, points in reports.metrics(session, self.context.job_id).items():
                for step, value in points:
                    if step <= self.resumed:
                        steps.setdefault(step, {})[name] = value
        yield from sorted(steps.items())
        while not self._disabled:
            with suppress(queue.Empty):
                yield self._reports.get(timeout=QUEUE_POLL_SECONDS)
                continue
            if self.ended.is_set() and self._reports.empty():
                return

    def _disable(self, reason: str) -> None:
        if not self._disabled:
            self._disabled = True
            message = f"{TRACKERS[self.tracker]} gets no more metrics of this training: {reason.rstrip('.')}."
            self.context.log(message, "warning")
