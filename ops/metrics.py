"""Metrics of jobs, processes, database and disk in the Prometheus format, read from rows."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from ops.storage import StorageMonitor, database_bytes
from speculoos.errors import SpeculoosError
from speculoos.resources import nearest_existing
from speculoos.settings import Settings
from tracking import workload
from tracking.db import reading

FRESH_SECONDS = 5.0
"""Cache time of metrics from rows."""
STORAGE_SECONDS = 600.0
"""Cache time of metrics that need the sizes of all files."""
T = TypeVar("T")


def fresh(seconds: float, read: Callable[[], T]) -> Callable[[], T]:
    """A function that calls `read` at most once every `seconds`; concurrent callers wait for its result."""
    lock, cached = threading.Lock(), dict[str, Any](until=0.0)

    def latest() -> T:
        with lock:
            if time.monotonic() > cached["until"]:
                cached["value"] = read()
                cached["until"] = time.monotonic() + seconds
            return cached["value"]

    return latest


class MetricRows:
    """A collector of metrics from the database and the disk, cached for a few seconds."""

    def __init__(self, settings: Settings, monitor: StorageMonitor, seconds: float = FRESH_SECONDS):
        self.settings, self.storage = settings, monitor
        self.collect = fresh(seconds, lambda: list(self._collect()))

    def _collect(self) -> Iterator[Metric]:
        try:
            with reading(self.settings) as session:
                load, size = workload.workload(session), database_bytes(session)
            yield gauge("speculoos_database_bytes", "Size of the database.", [], {(): size})
            yield from self._rows(load)
            up = 1
        except SpeculoosError:
            up = 0
        yield gauge("speculoos_database_up", "1 if the database responds.", [], {(): up})
        yield from self._disk()

    def _rows(self, load: workload.Workload) -> Iterator[Metric]:
        ages = {name: min(values) for name, values in load.heartbeats.items()}
        alive = {name: sum(age < 20 for age in values) for name, values in load.heartbeats.items()}
        held = {(device, by): float(holder == by) for device, holder in load.devices.items() for by in ("job", "run")}
        lost = "Attempts interrupted because their worker stopped reporting (lease_lost) or exited (worker_gone)."
        oldest = "Age of the oldest heartbeat of a running job."
        waiting = "Longest time a job has been ready to start."
        yield gauge("speculoos_jobs", "Listed jobs.", ["queue", "state"], load.jobs)
        yield gauge("speculoos_job_oldest_wait_seconds", waiting, ["queue"], load.oldest_wait)
        yield gauge("speculoos_job_heartbeat_age_seconds", oldest, ["queue"], load.silent_jobs)
        yield gauge(
            "speculoos_job_attempts", "Attempts of the listed jobs.", ["queue"], load.attempts, CounterMetricFamily
        )
        yield gauge("speculoos_attempts_lost", lost, ["reason"], load.counters, CounterMetricFamily)
        yield gauge("speculoos_runs", "Turns of chats and columns of comparisons.", ["state"], load.runs)
        yield gauge("speculoos_heartbeat_age_seconds", "Seconds since a process's last heartbeat.", ["process"], ages)
        yield gauge("speculoos_processes_alive", "Processes with a heartbeat within 20 s.", ["process"], alive)
        yield gauge("speculoos_device_held", "1 while a job or a measurement holds the device.", ["device", "by"], held)

    def _disk(self) -> Iterator[Metric]:
        disk = shutil.disk_usage(nearest_existing(self.settings.home))
        yield gauge("speculoos_disk_free_bytes", "Free bytes on the disk of the home folder.", [], {(): disk.free})
        yield gauge("speculoos_disk_total_bytes", "Size of that disk.", [], {(): disk.total})
        if usage := self.storage.get(STORAGE_SECONDS):
            used = "Bytes used by each part of the home folder."
            yield gauge("speculoos_storage_bytes", used, ["part"], usage.parts)


def gauge(
    name: str, description: str, labels: list[str], values: Mapping[Any, float], kind: type = GaugeMetricFamily
) -> Metric:
    """A metric from `values` by label value, or by a tuple of several."""
    family = kind(name, description, labels=labels)
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else [*map(str, key)], value)
    return family
