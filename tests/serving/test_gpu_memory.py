"""Chat and jobs share a GPU: a job waits until chat has freed enough memory, and chat does not take it back.

The GPU's memory is emulated; the models of the server are on the CPU.
"""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from speculoos import machine
from speculoos.errors import Cancelled
from tests.serving.conftest import Served, until
from tests.tools.gpu_memory import GpuMemory
from tracking import jobs, leases
from tracking.db import reading, writing
from tracking.tables import DeviceLease, Job
from workers.child.context import JobContext
from workers.child.gpu_memory import LARGEST_SHARE, wait_for_memory
from workers.timing import JobTiming

pytestmark = pytest.mark.integration
GPU, UUID = torch.device("cuda", 0), "GPU-1234"
GB = 10**9


@pytest.fixture
def gpu(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuMemory]:
    """A GPU of 10 GB, of which other programs use 1 GB, and the model of a chat 4 GB."""
    pool = served.engine.pool
    with served.client() as client:
        assert client.post("/v1/chat/completions", json=served.chat_request(max_tokens=2)).status_code == 200
    served.wait_idle()
    memory = GpuMemory(10 * GB, GB, lambda: 4 * GB if len(pool) else 0)
    memory.install(monkeypatch)
    monkeypatch.setattr(pool, "device", "cuda:0")
    monkeypatch.setattr(served.engine, "device", "cuda:0")
    monkeypatch.setattr(served.engine, "lease_name", UUID)
    yield memory


@pytest.fixture
def context(served: Served) -> Iterator[JobContext]:
    """A running job that holds the GPU."""
    key = machine.device_key(UUID, served.settings.home)
    with writing(served.settings) as session:
        job = Job(name="my training", kind="train", queue="gpu", state="RUNNING", attempt=1, request={})
        session.add(job)
        session.flush()
        assert leases.acquire(session, key, f"job:{job.id}", 60, 1)
    with JobContext(served.settings, job.id, 1, JobTiming(poll_seconds=0.05)) as job_context:
        yield job_context
    with writing(served.settings) as session:
        leases.release(session, f"job:{job.id}")
        session.delete(session.get_one(Job, job.id))


def note(context: JobContext) -> str:
    with reading(context.settings) as session:
        return jobs.get(session, context.job_id).progress_note


def reserved(context: JobContext) -> int:
    with reading(context.settings) as session:
        return session.get_one(DeviceLease, machine.device_key(UUID, context.settings.home)).memory


def test_a_job_waits_for_the_memory_that_chat_uses(served: Served, gpu: GpuMemory, context: JobContext) -> None:
    finished = threading.Event()
    served.engine.queue.submit("chat", lambda _: finished.wait(60))
    waiting = threading.Thread(target=wait_for_memory, args=(context, [GPU], lambda: 6 * GB))
    waiting.start()
    until(lambda: note(context) == f"Waits for 6.0 GB of GPU memory on {UUID} (5.0 GB are free, chat uses 4.0 GB).")
    assert len(served.engine.pool), "a model in use is not unloaded"
    finished.set()
    waiting.join(60)
    assert not waiting.is_alive() and not len(served.engine.pool)
    assert reserved(context) == 7 * GB, "what the job needs, and what other programs use"
    gpu.total = 7 * GB + 1000
    with served.client() as client:
        refused = client.post("/v1/chat/completions", json=served.chat_request())
    assert refused.status_code == 503
    message = refused.json()["error"]["message"]
    assert message.startswith("cycle needs ") and "the job “my training” has reserved 7.0 GB" in message


def test_a_model_stays_beside_a_job_that_has_enough(
    served: Served, gpu: GpuMemory, context: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job does not wait for a long answer, but for a model that the server is loading."""
    finished = threading.Event()
    served.engine.queue.submit("chat", lambda _: finished.wait(60))
    monkeypatch.setattr(served.engine.pool, "loading", True)
    waiting = threading.Thread(target=wait_for_memory, args=(context, [GPU], lambda: 5 * GB))
    waiting.start()
    until(lambda: note(context).endswith("(5.0 GB are free, chat uses 4.0 GB, chat loads a model)."))
    monkeypatch.setattr(served.engine.pool, "loading", False)
    waiting.join(60)
    assert not waiting.is_alive() and not finished.is_set()
    finished.set()
    assert len(served.engine.pool) and reserved(context) == 6 * GB
    with writing(served.settings) as session:
        leases.release(session, f"job:{context.job_id}")
    assert reserved(context) == 0


def test_a_job_needs_no_server_and_no_more_than_a_gpu_has(gpu: GpuMemory, context: JobContext) -> None:
    """Cancelling the job ends its wait for the memory of another program."""
    context.settings = replace(context.settings, inference_url="http://127.0.0.1:9")
    gpu.used, gpu.others = lambda: 0, gpu.total - int(LARGEST_SHARE * gpu.total)
    wait_for_memory(context, [GPU], lambda: 50 * GB)
    gpu.others += 1
    with writing(context.settings) as session:
        jobs.request_cancel(session, context.job_id)
    with pytest.raises(Cancelled):
        wait_for_memory(context, [GPU], lambda: 50 * GB)
    context.flush()
    assert note(context) == f"Waits for 9.0 GB of GPU memory on {UUID} (9.0 GB are free)."
