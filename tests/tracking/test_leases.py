"""Device leases have one holder at a time and expire; heartbeats of processes."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from speculoos import machine
from speculoos.errors import Fenced
from speculoos.settings import Settings
from tracking import db, leases, processes
from tracking.tables import DeviceLease, Job, Preference, now


def acquire(database: Settings, holder: str, seconds: float = 30, attempt: int = 0) -> bool:
    with db.writing(database) as session:
        return leases.acquire(session, "cpu", holder, seconds, attempt)


def test_a_device_has_one_holder_until_it_is_released(database: Settings) -> None:
    assert acquire(database, "job:1")
    assert not acquire(database, "run:2")
    assert acquire(database, "job:1"), "one may take again what one has"
    with db.writing(database) as session:
        assert leases.holder(session, "cpu") == "job:1"
        leases.release(session, "job:1")
        assert leases.holder(session, "cpu") == ""
    assert acquire(database, "run:2")


def test_a_lease_that_is_not_renewed_expires_and_its_holder_cannot_renew_it(database: Settings) -> None:
    acquire(database, "job:1", seconds=-1)
    with db.reading(database) as session:
        assert leases.holder(session, "cpu") == ""
    assert acquire(database, "run:2")
    with pytest.raises(Fenced), db.writing(database) as session:
        leases.renew(session, "cpu", "job:1", 30)


def test_a_job_at_work_keeps_its_device_whatever_the_clock_says(
    database: Settings, make_job: Callable[..., Job]
) -> None:
    job = make_job(state="RUNNING", attempt=2)
    assert acquire(database, f"job:{job.id}", seconds=-3600, attempt=2), "the clock was put forward since"
    with db.reading(database) as session:
        assert leases.holder(session, "cpu") == f"job:{job.id}"
    assert not acquire(database, "run:2")
    with db.writing(database) as session:
        session.get_one(Job, job.id).state = "FAILED"
    assert acquire(database, "run:2")


def test_a_lease_taken_before_the_clock_was_put_back_does_not_last_for_hours(database: Settings) -> None:
    acquire(database, "run:1", seconds=7200)
    assert acquire(database, "run:2")


def test_an_old_attempt_can_neither_renew_nor_release_the_new_ones_lease(database: Settings) -> None:
    acquire(database, "job:1", attempt=1)
    assert acquire(database, "job:1", attempt=2)
    with pytest.raises(Fenced), db.writing(database) as session:
        leases.renew(session, "cpu", "job:1", 30, attempt=1)
    with db.writing(database) as session:
        leases.release(session, "job:1", attempt=1)
        assert leases.holder(session, "cpu") == "job:1"


def test_one_of_many_gets_the_device(database: Settings) -> None:
    got: list[str] = []

    def run(holder: str) -> None:
        if acquire(database, holder):
            got.append(holder)

    threads = [threading.Thread(target=run, args=(f"run:{i}",)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(got) == 1
    with db.reading(database) as session:
        assert session.get_one(DeviceLease, "cpu").holder == got[0]


def test_a_job_for_two_devices_gets_them_before_younger_jobs(database: Settings, make_job: Callable[..., Job]) -> None:
    wide, other, young = (make_job(name, state="RUNNING", attempt=1) for name in ("wide", "other", "young"))

    def some(job: Job, count: int = 1, devices: str = "ab") -> list[str]:
        return leases.acquire_some(session, list(devices), count, f"job:{job.id}", 60, 1)

    with db.writing(database) as session:
        assert some(other) == ["a"] and some(wide, 2) == [], "all or none"
        assert some(young) == [] and not leases.acquire(session, "b", "run:1", 60), "b is reserved for wide"
        assert some(young, devices="abc") == ["c"], "nobody waits for c"
        leases.release(session, f"job:{young.id}")
        assert leases.older_waiting(session, ["a", "b", "c"], f"job:{young.id}") == ["wide"]
        assert leases.older_waiting(session, ["a", "b", "c"], f"job:{wide.id}") == []
        leases.release(session, f"job:{other.id}")
        assert some(young) == [] and some(wide, 2) == ["a", "b"]
        leases.release(session, f"job:{wide.id}")
        assert some(young, 2) == ["a", "b"], "the reservation is over"
        assert some(wide, 2) == []
        session.get_one(Job, wide.id).state = "INTERRUPTED"  # killed while it waits
        session.flush()
        leases.release(session, f"job:{young.id}")
        assert some(young) == ["a"]


def test_an_older_job_takes_over_the_reservation_of_a_younger_one(
    database: Settings, make_job: Callable[..., Job]
) -> None:
    old, young = (f"job:{make_job(name, state='RUNNING', attempt=1).id}" for name in ("old", "young"))
    with db.writing(database) as session:
        assert leases.acquire(session, "a", "run:1", 60)
        for holder in (young, old, young):
            assert leases.acquire_some(session, ["a"], 1, holder, 60, 1) == []
        assert session.get_one(DeviceLease, "a", populate_existing=True).reserved_for == old
        leases.release(session, "run:1")
        assert leases.acquire_some(session, ["a"], 1, young, 60, 1) == []
        assert leases.acquire_some(session, ["a"], 1, old, 60, 1) == ["a"]


def test_a_holder_has_the_name_of_its_job(database: Settings, make_job: Callable[..., Job]) -> None:
    job = make_job("Train heads")
    acquire(database, f"job:{job.id}")
    with db.reading(database) as session:
        assert leases.holder_name(session, "cpu") == "Train heads"
        assert leases.holder_name(session, "cuda:0") == ""


def test_processes_are_alive_while_they_beat(database: Settings) -> None:
    with processes.heartbeats_during(database, "worker-io", queue="io", concurrency=3):
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            with db.reading(database) as session:
                if processes.capacities(session).get("io") == 3:
                    break
        with db.reading(database) as session:
            assert [p.value["name"] for p in processes.alive(session, "worker-io")] == ["worker-io"]
            assert "gpu" not in processes.capacities(session)
    with db.reading(database) as session:
        assert [process.key for process in processes.alive(session)] == []


def test_a_silent_process_counts_as_gone_and_is_forgotten_later(database: Settings) -> None:
    with db.writing(database) as session:
        silent = {"name": "worker-gpu", "concurrency": 1}
        for age, host in ((timedelta(minutes=1), "a"), (timedelta(days=2), "b")):
            session.add(Preference(key=f"process:worker-gpu@{host}:1", value=silent, updated_at=now() - age))
    with db.writing(database) as session:
        assert processes.alive(session) == []
        assert now() - processes.last_seen(session, "worker-gpu") < timedelta(minutes=2)
        processes.delete_heartbeat(session, "reconciler")
        assert session.query(Preference).count() == 1


def test_equal_devices_of_two_machines_are_two(
    database: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines differ by the id in their homes, though host name and /etc/machine-id are the same."""
    homes = [tmp_path / "one", tmp_path / "two"]
    for home in homes:
        home.mkdir()
    one, two = (machine.device_key("cpu", home) for home in homes)
    assert one != two and one == machine.device_key("cpu", homes[0]) and one.startswith("cpu@")
    with db.writing(database) as session:
        assert leases.acquire(session, one, "job:1", 30)
        assert leases.acquire(session, two, "job:2", 30)
        assert (leases.holder(session, one), leases.holder(session, two)) == ("job:1", "job:2")
    assert machine.machine_key(homes[0]) != machine.machine_key(homes[1])
    with monkeypatch.context() as patched:
        patched.setattr(machine.socket, "gethostname", lambda: "another-container")
        assert machine.device_key("cpu", homes[0]) == one, "containers that share machine and home share its devices"
        assert machine.machine_key(homes[0]).startswith("another-container~")


def test_a_machine_without_a_home_makes_none(tmp_path: Path) -> None:
    assert machine.machine_key(tmp_path / "none") and not (tmp_path / "none").exists()
