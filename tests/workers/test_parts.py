"""The parts of a worker, one by one: time left, secrets, process identity, the reconciler's handling of rows."""

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest
import torch

from speculoos import machine
from speculoos.errors import BadInput, Cancelled, Conflict, Fenced, NotFound, Unavailable
from speculoos.log_files import last_line
from speculoos.redaction import cut_to_words, known_secrets, redact
from speculoos.settings import Settings, load
from tests.tools import fake_gpus
from tests.workers.conftest import wait_until
from tracking import db, jobs, leases, processes, reports
from tracking.tables import Base, DeviceLease, Job, now
from workers import identity
from workers.child.context import EXIT_FENCED, Eta, JobContext
from workers.child.work import measure
from workers.child.work.measure import take_device
from workers.supervise.attempt import KILLED_REASON, MEMORY_HINT, AttemptSupervisor, failure_hint
from workers.supervise.reconcile import LeaseMonitor, interrupt_lost, jobs_without_message
from workers.timing import JobTiming, job_timing


def make_job(settings: Settings, **columns: object) -> Job:
    with db.writing(settings) as session:
        job = jobs.create(session, kind="train", queue="gpu", request={}, name="work")
        for column, value in columns.items():
            setattr(job, column, value)
    return job


def test_time_left_is_unknown_first_and_then_follows_the_pace() -> None:
    clock = iter([0.0, 1.0, 2.0, 3.0, 3.05, 5.0]).__next__
    eta = Eta(clock=clock)
    assert eta.update(0, 100) is None
    assert eta.update(10, 100) == pytest.approx(9.0)
    assert eta.update(20, 100) == pytest.approx(8.0)
    assert eta.update(30, None) is None
    assert eta.update(30, 100) == pytest.approx(7.0), "no news is no measurement"
    slower = eta.update(31, 100)
    assert slower > 69 * 0.1


def test_known_and_likely_secrets_are_masked(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "my-own-token-value")
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:sesame-open@db/x")
    secrets = known_secrets(load())
    text = "my-own-token-value hf_abcdefghijklmnopqrstuvwx postgresql://you:other@db/x sesame-open https://a.b/c:d@e"
    assert redact(text, secrets) == "••• ••• postgresql://•••@db/x ••• https://a.b/c:d@e"
    assert redact("an ordinary line, 3:4", secrets) == "an ordinary line, 3:4"
    monkeypatch.setenv("SPECULOOS_METRICS_TOKEN", "scraped-4711")
    assert redact("a scraped-4711", known_secrets(load())) == "a •••"


def test_a_text_is_cut_before_a_word_that_could_be_the_beginning_of_a_secret() -> None:
    assert cut_to_words("wrong key sesame-4711", 21) == "wrong key sesame-4711"
    assert cut_to_words("wrong key sesame-4711", 18) == "wrong key …"
    assert cut_to_words("sesame-4711", 6) == " …"


@pytest.mark.parametrize(
    "reason, hint",
    [
        (f"The process of attempt 5 ended without a result: {KILLED_REASON}.", MEMORY_HINT),
        ("… it was ended by SIGABRT; its last line was: what():  std::bad_alloc.", MEMORY_HINT),
        ("… ended with exit status 3; its last line was: no such kernel.", jobs.RETRY_HINT),
    ],
)
def test_a_process_that_ended_for_want_of_memory_is_followed_by_what_to_change(reason: str, hint: str) -> None:
    assert failure_hint(reason) == hint


@pytest.mark.integration
def test_a_process_is_recognized_by_more_than_its_pid() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    process = identity.process_identity(child.pid)
    assert identity.is_alive(process)
    assert not identity.is_alive({**process, "ticks": "5"}), "the pid was used again"
    fields = {name: process[name] for name in ("host", "boot_id", "pid")}
    date = psutil.Process(child.pid).create_time()
    assert identity.is_alive({**fields, "started": date}) and not identity.is_alive({**fields, "started": date - 5})
    assert not identity.worker_is_dead(f"{process['host']}/{process['boot_id']}/{child.pid}/{date}"), (
        "rows kept dates once"
    )
    assert not identity.is_alive({**process, "boot_id": "earlier"}) and not identity.is_alive(
        {**process, "host": "other"}
    )
    assert not identity.is_alive({}) and not identity.end_group({**process, "host": "other"}, 1)
    assert child.poll() is None, "what is not ours is left alone"
    name = identity.worker_id(child.pid)
    assert not identity.worker_is_dead(name)
    assert identity.end_group(process, 5)
    child.wait()
    assert not identity.is_alive(process) and identity.worker_is_dead(name)
    assert not identity.worker_is_dead("elsewhere/boot/1/2.0") and not identity.worker_is_dead("")


@pytest.mark.integration
def test_a_group_that_ignores_term_is_killed() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
    assert identity.end_group(identity.process_identity(child.pid), 0.3)
    assert child.wait(5) == -signal.SIGKILL


@pytest.mark.integration
def test_rows_of_dead_and_silent_workers_are_interrupted_and_others_left(home: Settings) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    owner = identity.worker_id(ended.pid)
    ended.wait()
    soon, past = now() + timedelta(seconds=60), now() - timedelta(seconds=1)
    running = {"state": "RUNNING", "attempt": 1}
    dead = make_job(home, **running, owner=owner, lease_until=soon)
    silent = make_job(home, **running, owner="elsewhere/boot/1/2.0", lease_until=past)
    living = make_job(home, **running, owner=identity.worker_id(), lease_until=soon)
    cancelled = make_job(home, **running, owner=owner, lease_until=soon, cancel_requested=True)
    exhausted = make_job(home, state="RUNNING", attempt=5, owner=owner, lease_until=soon)
    with db.writing(home) as session:
        lost = interrupt_lost(session, {silent.id})
    assert {job.id for job in lost} == {job.id for job in (dead, silent, cancelled, exhausted)}
    with db.reading(home) as session:
        states = [jobs.get(session, job.id).state for job in (dead, silent, living, cancelled, exhausted)]
        assert states == ["INTERRUPTED", "INTERRUPTED", "RUNNING", "CANCELLED", "FAILED"]
        assert "has died" in reports.logs(session, dead.id)[0].message
        assert "Failed after 5 consecutive attempts" in jobs.get(session, exhausted.id).error


def test_messages_are_sent_again_only_when_workers_idle(home: Settings) -> None:
    timing = JobTiming(republish_seconds=10)

    def is_due(job: Job) -> bool:
        with db.reading(home) as session:
            return bool(jobs_without_message(session, [jobs.get(session, job.id)], timing))

    old = make_job(home, published_at=now() - timedelta(seconds=60))
    assert is_due(make_job(home))
    assert not is_due(make_job(home, published_at=now()))
    assert not is_due(old), "no worker lives, so the message may well be waiting for one"
    with db.writing(home) as session:
        processes.beat(session, "worker-gpu", queue="gpu", concurrency=1)
    assert is_due(old)
    make_job(home, state="RUNNING")
    assert not is_due(old), "the worker is busy, the message waits its turn"


def test_timing_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECULOOS_LEASE_SECONDS", "2.5")
    assert job_timing() == JobTiming(lease_seconds=2.5)
    for value in ("soon", "-1", "0"):
        monkeypatch.setenv("SPECULOOS_POLL_SECONDS", value)
        with pytest.raises(BadInput, match="SPECULOOS_POLL_SECONDS"):
            job_timing()


@pytest.fixture
def context(home: Settings) -> JobContext:
    job = make_job(home, state="RUNNING", attempt=3)
    return JobContext(home, job.id, 3, JobTiming(poll_seconds=0.05, lease_seconds=1))


def test_work_publishes_only_while_the_job_is_its_own(context: JobContext) -> None:
    with context.session() as session:
        session.add(Base(id="b" * 32, name="base", source="hub", location="x"))
    context.update_output(Base, "b" * 32, state="ready", path="/x")
    assert context.input_with_files(Base, "b" * 32).path == "/x"
    with context.session() as session:
        session.get_one(Job, context.job_id).attempt = 4
    with pytest.raises(Fenced):
        context.update_output(Base, "b" * 32, path="/old")
    with pytest.raises(Fenced):
        context.flush()
    assert context.input_with_files(Base, "b" * 32).path == "/x"


def test_inputs_that_are_gone_or_not_ready_are_named(context: JobContext) -> None:
    with context.session() as session:
        session.add(Base(id="b" * 32, name="base", source="hub", location="x"))
    with pytest.raises(Conflict, match="'base' is still being created"):
        context.input_with_files(Base, "b" * 32)
    with pytest.raises(NotFound, match="was deleted"):
        context.input_with_files(Base, "c" * 32)


def test_a_row_is_looked_at_without_its_files(context: JobContext, tmp_path: Path) -> None:
    """A job that only queries a server needs the row, not the weights."""
    with context.session() as session:
        session.add(Base(id="b" * 32, name="base", source="hub", location="x", path="/gone", state="ready"))
    shared = replace(context.settings, store=f"file://{tmp_path}/store")
    other_machine = JobContext(shared, context.job_id, context.attempt, context.timing)
    assert other_machine.input_row(Base, "b" * 32).path == "/gone"
    with pytest.raises(Unavailable, match="neither on this machine nor in the store"):
        other_machine.input_with_files(Base, "b" * 32)


def test_attempts_write_apart_and_find_each_other(context: JobContext) -> None:
    folder = context.checkpoint_folder("c")
    assert folder.name == "attempt-3" and folder.is_dir()
    for number in (1, 2, 10):
        (folder.parent / f"attempt-{number}").mkdir()
    assert [p.name for p in context.earlier_attempts("c")] == ["attempt-2", "attempt-1"]


def test_a_report_that_could_not_be_written_is_not_lost(context: JobContext, monkeypatch: pytest.MonkeyPatch) -> None:
    context.log("first")
    context.progress(1, 10, "steps")
    context.metrics(1, {"loss": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(reports, "write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            context.flush()
    context.log("second")
    context.flush()
    with context.session() as session:
        assert [line.message for line in reports.logs(session, context.job_id)] == ["first", "second"]
        assert reports.metrics(session, context.job_id) == {"loss": [(1, 1.0)]}
        assert jobs.get(session, context.job_id).done == 1


def test_a_moment_without_database_at_the_end_does_not_fail_the_work(
    context: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failures = reports.write, iter([True, True, False])

    def write_after_failures(*arguments: object) -> bool:
        if next(failures, False):
            raise Unavailable("The database cannot be used now.")
        return write(*arguments)

    context.log("the last word")
    monkeypatch.setattr(reports, "write", write_after_failures)
    context.__exit__(None, None, None)
    with context.session() as session:
        assert [line.message for line in reports.logs(session, context.job_id)] == ["the last word"]


def test_work_waits_for_its_device_and_keeps_it(context: JobContext) -> None:
    device = machine.device_key("cpu", context.settings.home)

    def leased_until() -> datetime:
        with context.session() as session:
            return session.get_one(DeviceLease, device).until

    started = time.monotonic()
    with context.session() as session:
        leases.acquire(session, device, "run:1", 0.4)
    with context:
        context.acquire_devices(["cpu"])
        assert time.monotonic() - started > 0.3
        first = leased_until()
        wait_until(lambda: leased_until() > first + timedelta(seconds=1), 60, "renewals for longer than a lease")
        with context.session() as session:
            assert leases.holder(session, device) == f"job:{context.job_id}"


def test_the_device_of_a_job_is_leased_by_its_uuid(context: JobContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number depends on the process: CUDA_VISIBLE_DEVICES and containers change it."""
    fake_gpus.install_in_nvml(monkeypatch, 4)
    for name, value in fake_gpus.torch_functions(4).items():
        monkeypatch.setattr(torch.cuda, name, value)
    keys = [
        machine.device_key(name, context.settings.home) for name in (fake_gpus.uuid(3), fake_gpus.uuid(1), "cuda:3")
    ]
    with context:
        with context.session() as session:
            leases.acquire(session, keys[0], "run:1", 60)
        assert take_device(context) == "cuda:2", "any free one; the inference server uses the first"
        with context.session() as session:
            leases.release(session, "run:1")
        context.settings = replace(context.settings, device="cuda:1")
        assert take_device(context, "cuda:3") == "cuda:3"
        assert take_device(context) == "cuda:1"
        with context.session() as session:
            assert [bool(leases.holder(session, key)) for key in keys] == [True, True, False]
        context.metrics(1, {"train/loss": 2.0})
    with context.session() as session:
        metrics = reports.metrics(session, context.job_id)
    assert metrics == {
        "train/loss": [(1, 2.0)],
        "gpu/utilization/GPU-5d3b1c21": [(1, 0.1)],
        "gpu/memory_gb/GPU-5d3b1c21": [(1, 1.0)],
        "gpu/temperature/GPU-5d3b1c21": [(1, 51.0)],
    }


def test_a_job_takes_as_many_gpus_as_its_base_needs(context: JobContext, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake_gpus.torch_functions(4).items():
        monkeypatch.setattr(torch.cuda, name, value)
    waited = []  # these GPUs have no memory to wait for, so the calls are recorded
    monkeypatch.setattr(measure, "wait_for_memory", lambda _, devices, estimate: waited.append((*devices, estimate())))

    def memory(gpus: int, tokens: int = 10) -> float:
        return (140e9 + tokens * 1e9) / gpus

    # Without `with context:`, since a heartbeat between release and acquisition ends the process, as it should.
    assert take_device(context, memory=memory) == "cuda:3,cuda:2,cuda:1"
    assert waited == [(*(torch.device("cuda", number) for number in (3, 2, 1)), 50e9)]
    with context.session() as session:
        leases.release(session, f"job:{context.job_id}")
    assert take_device(context, memory=lambda gpus, tokens=10: 9e9 * tokens) == "cuda:3,cuda:2,cuda:1,cuda:0"
    with pytest.raises(BadInput, match=r"about 140\.0 GB on the GPU that this job may use, which has only 80\.0 GB"):
        take_device(context, "cuda:1", memory)
    with pytest.raises(BadInput, match=r"about 350\.0 GB on each of the 4 GPUs"):
        take_device(context, memory=lambda gpus, tokens=0: 1400e9 / gpus)


def test_several_gpus_are_leased_all_or_none(context: JobContext) -> None:
    keys = [machine.device_key(name, context.settings.home) for name in "abcd"]
    holder = f"job:{context.job_id}"
    with context, context.session() as session:
        leases.acquire(session, keys[1], "run:1", 60)
    assert context.acquire_devices("abcd", 3) == ["a", "c", "d"]
    with context.session() as session:
        leases.release(session, holder)
        assert leases.acquire_some(session, keys, 4, holder, 60, context.attempt) == []
        assert [leases.holder(session, key) for key in keys] == ["", "run:1", "", ""]
        leases.release(session, "run:1")
    assert context.acquire_devices("abcd", 4) == list("abcd")


def test_a_wish_to_stop_ends_the_wait_for_a_device(context: JobContext) -> None:
    with context.session() as session:
        leases.acquire(session, machine.device_key("cpu", context.settings.home), "run:1", 60)
        jobs.request_cancel(session, context.job_id)
    with context, pytest.raises(Cancelled):
        context.acquire_devices(["cpu"])


SILENT_CHILD = """
import sys, time
from speculoos.settings import load
from tracking import db
from workers.child.context import JobContext
from workers.timing import JobTiming
db.BUSY_MILLISECONDS = 300  # else a beat waits for ten seconds
with JobContext(load(), sys.argv[1], 1, JobTiming(poll_seconds=0.1, lease_seconds=0.5)):
    print("started", flush=True)
    time.sleep(60)
"""


@pytest.mark.integration
def test_a_child_that_cannot_reach_the_database_for_a_lease_leaves(home: Settings, tmp_path: Path) -> None:
    job = make_job(home, state="RUNNING", attempt=1)
    child = subprocess.Popen(
        [sys.executable, "-c", SILENT_CHILD, job.id], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
    )
    assert child.stdout.readline() == b"started\n"
    with db.writing(home) as session:  # a writer that never lets go
        session.connection()
        assert child.wait(30) == EXIT_FENCED
    assert b"was unreachable" in child.stderr.read()


@pytest.mark.parametrize(
    ("error", "code"),
    [(OSError(errno.ENOSPC, "No space left on device"), "disk_full"), (OSError(1, "no"), "unexpected")],
)
def test_a_process_that_cannot_be_started_fails_its_job_with_the_reason(
    home: Settings, monkeypatch: pytest.MonkeyPatch, error: OSError, code: str
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise error

    job = make_job(home, state="RUNNING", attempt=1)
    monkeypatch.setattr(subprocess, "Popen", no_room)
    AttemptSupervisor(home, job.id, 1, JobTiming()).run()
    with db.reading(home) as session:
        failed = jobs.get(session, job.id)
    assert (failed.state, failed.error_code) == ("FAILED", code) and failed.error and failed.hint


def test_the_last_line_of_a_log_skips_our_own_headers(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("--- attempt 1 ---\nsomething broke\n\n--- attempt 2 ---\n")
    assert last_line(log) == "something broke"
    assert last_line(tmp_path / "none.log") == ""


def test_a_message_with_a_foreign_id_does_nothing(home: Settings) -> None:
    from workers.supervise.attempt import run_job

    run_job("../../etc/passwd")
    run_job("f" * 32)
    with db.reading(home) as session:
        assert session.query(Job).count() == 0
    wait_until(lambda: not (home.home / "logs").exists(), 1, "no log folder")


def test_only_a_lease_that_stands_still_while_one_watches_is_silent() -> None:
    seconds = 0.0
    monitor = LeaseMonitor(10, longest_step=3, clock=lambda: seconds)
    job = Job(id="a", attempt=1, lease_until=now() - timedelta(days=1))
    assert monitor.expired([job]) == set(), "a date that has passed means nothing by itself"
    seconds += 1000
    assert monitor.expired([job]) == set(), "the watcher stood still too"
    for _ in range(2):
        seconds += 3
        assert monitor.expired([job]) == set()
    seconds += 3
    assert monitor.expired([job]) == {"a"}
    job.lease_until = now() - timedelta(days=2)
    seconds += 3
    assert monitor.expired([job]) == set(), "renewed, by a clock that was put back"
