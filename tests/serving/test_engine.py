"""The engine while a job runs: an idle GPU is released, and cores of a CPU are left to the job."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from serving import engine as engine_module
from serving.catalog import ModelRef
from serving.engine import Engine
from serving.protocol import ChatRequest
from speculoos import machine
from speculoos.settings import Settings
from tests.serving.conftest import until
from tracking import leases
from tracking.db import writing
from tracking.tables import Job


@pytest.fixture
def engine(home: Settings) -> Iterator[Engine]:
    engine = Engine(home)
    until(lambda: not engine.queue.busy and not engine.queue.waiting)
    yield engine
    engine.close()


@pytest.fixture
def ref(model_files: Path) -> ModelRef:
    return ModelRef("cycle", str(model_files / "cycle"), "b" * 64)


def generate(engine: Engine, ref: ModelRef) -> int:
    """Generate three tokens; returns the number of threads that torch used."""
    request = ChatRequest(model="cycle", messages=[{"role": "user", "content": "x"}], max_tokens=3)
    engine.answer(ref, request, [1, 2, 3], lambda record: None, threading.Event())
    return torch.get_num_threads()


def lease_for_job(settings: Settings, device: str) -> str:
    with writing(settings) as db:
        job = Job(name="training", kind="train", queue="gpu", state="RUNNING")
        db.add(job)
        db.flush()
        assert leases.acquire(db, machine.device_key(device, settings.home), f"job:{job.id}", 60)
        return f"job:{job.id}"


def test_half_of_the_cores_are_left_to_a_job(engine: Engine, ref: ModelRef) -> None:
    usual = torch.get_num_threads()
    try:
        engine._threads = 4
        assert generate(engine, ref) == 4
        holder = lease_for_job(engine.settings, "cpu")
        assert generate(engine, ref) == 2
        with writing(engine.settings) as db:
            leases.release(db, holder)
        assert generate(engine, ref) == 4
    finally:
        torch.set_num_threads(usual)


def test_an_idle_gpu_is_given_back_to_a_job(engine: Engine, ref: ModelRef, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the name of the device makes it a GPU, so the test needs none."""
    generate(engine, ref)
    lease_for_job(engine.settings, "cuda:0")
    engine.unload_for_job()
    assert len(engine.pool) == 1  # a job on a GPU does not need a CPU's memory
    engine.device = engine.lease_name = "cuda:0"
    engine.queue.idle_since = time.monotonic()
    engine.unload_for_job()
    assert len(engine.pool) == 1  # the last request was a moment ago
    monkeypatch.setattr(engine_module, "IDLE_SECONDS", 0.0)
    engine.unload_for_job()
    until(lambda: len(engine.pool) == 0)
