"""Eight workers share eight fake GPUs, which have UUIDs only, with jobs that hold them."""

from pathlib import Path

import pytest

from speculoos import machine
from tests.tools import fake_gpus
from tests.workers.conftest import Bench, wait_until
from tests.workers.gpu_work import COUNT, EVERYONE, WORK, HoldGpus
from tracking import db, jobs, leases
from tracking.tables import DeviceLease, Job
from workers.celery_app import publish

pytestmark = pytest.mark.integration
FORKED = True


def submit(bench: Bench, folder: Path, name: str, gpus: int = 1, **fields: object) -> Job:
    """Submit a job that ends once the file `name` is in `folder`."""
    request = HoldGpus(folder=str(folder), end=name, gpus=gpus, **fields).to_json()
    with db.writing(bench.settings) as session:
        job = jobs.create(session, kind="hold_gpus", queue="gpu", request=request, name=name)
    publish(bench.settings, [job])
    return job


def notes(folder: Path) -> list[list[str]]:
    """Name, time and GPUs of each attempt that got them."""
    file = folder / "notes"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def gpus_by_job(folder: Path) -> dict[str, list[str]]:
    """The GPUs of each job, in the order in which the jobs began."""
    return {name: gpus for name, _, *gpus in notes(folder)}


def leased(bench: Bench) -> set[tuple[str, str]]:
    """Holder and reservation of each device."""
    with db.reading(bench.settings) as session:
        return {(lease.holder, lease.reserved_for) for lease in session.query(DeviceLease)}


def test_eight_workers_share_eight_gpus_with_a_training_on_four_and_a_chat(bench: Bench, tmp_path: Path) -> None:
    bench.environment |= WORK | {"SPECULOOS_POLL_SECONDS": "0.3", "SPECULOOS_LEASE_SECONDS": "30"}
    for _ in range(COUNT):
        bench.worker("gpu")
    all_gpus = {fake_gpus.uuid(number) for number in range(COUNT)}

    def wait_begun(*names: str) -> None:
        wait_until(lambda: set(names) <= gpus_by_job(tmp_path).keys(), 120, f"{names}", bench.output)

    def wait_for_note(job: Job, reason: str) -> None:
        bench.wait_for(job.id, lambda row: reason in row.progress_note, reason)

    with leases.exclusive_device(bench.settings, fake_gpus.uuid(0), "chat"):
        shards = {f"shard-{number}": submit(bench, tmp_path, f"shard-{number}") for number in range(COUNT)}
        wait_until(lambda: len(gpus_by_job(tmp_path)) == COUNT - 1, 120, "seven shards", bench.output)
        (last,) = shards.keys() - gpus_by_job(tmp_path).keys()
        wait_for_note(shards[last], "Waits: GPUs are held by")
    wait_begun(last)
    assert {gpu for gpus in gpus_by_job(tmp_path).values() for gpu in gpus} == all_gpus, "eight at once, one each"

    training = submit(bench, tmp_path, "training", gpus=4)
    later = submit(bench, tmp_path, "later")
    (tmp_path / last).touch()  # its GPU is the inference server's, the last one that jobs take
    wait_for_note(training, "Waits for 4 GPUs")
    with leases.exclusive_device(bench.settings, fake_gpus.uuid(0), "chat"), db.reading(bench.settings) as session:
        key = machine.device_key(fake_gpus.uuid(0), bench.settings.home)
        assert not leases.holder(session, key), "a chat does not take what a job waits for"
    first, second, third = [name for name in shards if name != last][:3]
    (tmp_path / first).touch()
    wait_for_note(later, "training is next")
    for name in (second, third):
        (tmp_path / name).touch()
    wait_begun("training")
    assert list(gpus_by_job(tmp_path))[COUNT:] == ["training"], "before the job that came later"
    freed = {gpu for name in (last, first, second, third) for gpu in gpus_by_job(tmp_path)[name]}
    assert set(gpus_by_job(tmp_path)["training"]) == freed
    (tmp_path / EVERYONE).touch()
    for job in (*shards.values(), training, later):
        assert bench.wait(job.id, "SUCCEEDED").attempt == 1
    wait_until(lambda: leased(bench) == {("", "")}, 60, "the end of all leases")
