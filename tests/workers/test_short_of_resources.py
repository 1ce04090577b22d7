"""Short of disk or memory, jobs pause and continue by themselves or fail with a clear message. Logs stay bounded."""

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.views.job_view import banner, state_label
from speculoos import resources
from speculoos.log_files import last_line, rotate_if_full, rotated_log
from speculoos.settings import load
from tests.workers.conftest import Bench, wait_until
from tests.workers.holds import PROGRESS, hold
from tests.workers.test_drills import steps, submit_count, wait_for_steps
from tracking import db, listing
from workers.jobs.requests import ImportPrompts
from workers.jobs.submit import request_cancel, submit
from workers.supervise import attempt

pytestmark = pytest.mark.integration

FORKED = True
MB = 2**20


def fill(disk: Path, left: int) -> None:
    """Fill a disk until `left` bytes are free."""
    free = resources.shutil.disk_usage(disk).free
    with (disk / f"ballast-{free}").open("wb") as file:
        file.write(b"0" * max(0, free - left))


def free_space(disk: Path) -> None:
    [file.unlink() for file in disk.glob("ballast-*")]


@pytest.fixture
def small(broker: str, small_disk: Path) -> Iterator[Bench]:
    """A home on a disk of 16 MB, of which 4 MB must stay free."""
    settings = replace(load({"SPECULOOS_HOME": str(small_disk / "home")}), redis_url=f"{broker}?virtual_host=4")
    settings = replace(settings, min_disk_mb=4)
    db.upgrade(settings)
    bench = Bench(settings, forked=True, SPECULOOS_MIN_DISK_MB="4")
    yield bench
    bench.end()


def wait_reason(bench: Bench, job_id: str) -> str:
    with db.reading(bench.settings) as session:
        return listing.Queues(session).waits_for(bench.job(job_id))


def test_below_the_floor_jobs_pause_and_go_on_by_themselves(small: Bench, small_disk: Path, tmp_path: Path) -> None:
    small.worker()
    small.reconciler()
    with hold(small.settings.home, PROGRESS, 3):
        job = submit_count(small, tmp_path / "w", steps=10)
        wait_for_steps(small, job)
        fill(small_disk, 3 * MB)
        paused = small.wait(job.id, "INTERRUPTED")
    note = re.fullmatch(
        rf"Paused: (\d\.\d) MB free on the disk that holds {re.escape(str(small.settings.home))}, "
        r"the minimum is 4\.2 MB; free some space and the job continues automatically",
        paused.progress_note,
    )
    assert note and 2.9 <= float(note[1]) <= 3.1  # the database's log takes some of the 3 MiB
    assert paused.attempt_cap > 5, "its attempt is given back"
    assert state_label(paused) == ("Paused", "warn") and "the minimum is 4.2 MB" in banner(paused)
    other = submit_count(small, tmp_path / "other", steps=2)
    wait_until(lambda: wait_reason(small, other.id).startswith("Paused: "), 90, "the reason on the pages")
    assert small.job(other.id).attempt == 0 and small.job(job.id).attempt == 1
    free_space(small_disk)
    assert small.wait(job.id, "SUCCEEDED").attempt == 2
    small.wait(other.id, "SUCCEEDED")
    assert steps(tmp_path / "w") == list(range(10)), "it stopped at a safe point and went on from there"


def test_work_that_meets_the_full_disk_before_its_worker_does_pauses_too(small: Bench, small_disk: Path) -> None:
    """The reserve is deleted so that the row can be written. With free space the job continues, with a new reserve."""
    assert resources.update_reserve(small.settings)
    small.worker()
    small.reconciler()
    job = submit_count(small, small_disk / "w", steps=3, trick="fill")
    paused = small.wait(job.id, "INTERRUPTED")
    assert re.fullmatch(
        r"Paused: \d\.\d MB free on the disk that holds .*, the minimum is 4\.2 MB; .*", paused.progress_note
    )
    assert not (small.settings.home / resources.RESERVE).exists()
    (small_disk / "w" / "ballast").unlink()
    assert small.wait(job.id, "SUCCEEDED").attempt == 2
    wait_until((small.settings.home / resources.RESERVE).exists, 90, "a new reserve")


def test_an_import_that_would_take_all_memory_ends_in_one_sentence(bench: Bench, tmp_path: Path) -> None:
    """One value of 60 MiB in a file of 2 kB passes the reader's limits but exceeds the memory of this child."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"prompt": ["x" * (60 * MB)]}), path, compression="zstd", write_statistics=False)
    bench.environment["SPECULOOS_JOB_MEMORY_MB"] = "220"
    bench.forked = False  # shared libraries would count
    bench.worker()
    request = ImportPrompts(path=str(path), original_name="bomb.parquet")
    job = submit(request, name="bomb", settings=bench.settings)
    failed = bench.wait(job.id, "FAILED")
    assert failed.error_code == "out_of_memory" and failed.attempt == 1
    assert failed.error.startswith("The memory was not enough") and failed.hint


def test_a_job_that_takes_more_memory_than_it_may_is_ended_and_says_so(bench: Bench, tmp_path: Path) -> None:
    bench.environment["SPECULOOS_JOB_MEMORY_MB"] = "250"
    bench.forked = False  # shared libraries would count
    bench.worker()
    greedy, modest = (submit_count(bench, tmp_path / t, trick=t, steps=200 if t else 3) for t in ("hoard", ""))
    failed = bench.wait(greedy.id, "FAILED")
    assert failed.error_code == "out_of_memory" and "SPECULOOS_JOB_MEMORY_MB" in failed.hint
    assert failed.error.startswith("The memory was not enough for this job: it used 0.")
    assert failed.error.endswith("the limit is 0.3 GB.")
    bench.wait(modest.id, "SUCCEEDED")


def test_a_child_that_the_system_would_end_first(steady: Bench, tmp_path: Path) -> None:
    """When memory runs out, the system kills a job rather than the pages, the database or the worker."""
    job = submit_count(steady, tmp_path / "w", steps=2000)
    running = wait_for_steps(steady, job)
    score = Path(f"/proc/{running.child['pid']}/oom_score_adj")
    assert int(score.read_text()) == 500 > int(Path("/proc/self/oom_score_adj").read_text())
    os.kill(running.child["pid"], signal.SIGKILL)
    wait_until(lambda: steady.job(job.id).attempt == 2, 120, "the next attempt")
    request_cancel(job.id, steady.settings)
    steady.wait(job.id, "CANCELLED")


def test_a_job_that_prints_without_end_fills_no_disk(steady: Bench, tmp_path: Path) -> None:
    """400 lines of 100 kB are 40 MB; the worker keeps at most the newest 10, and 10 older ones."""
    with hold(steady.settings.home, PROGRESS, 360):
        job = submit_count(steady, tmp_path / "w", steps=400, seconds=0.005, trick="flood")
        wait_for_steps(steady, job, 360)
        log = attempt.log_path(steady.settings, job.id)
        wait_until(lambda: log.stat().st_size <= attempt.MAX_LOG_BYTES, 60, "the worker, which may be behind")
    steady.wait(job.id, "SUCCEEDED")
    size = log.stat().st_size + rotated_log(log).stat().st_size
    assert size < 2.5 * attempt.MAX_LOG_BYTES
    assert "line 399 " in log.read_text() + rotated_log(log).read_text()


def test_the_last_output_of_a_child_is_kept_when_its_worker_is_killed(bench: Bench, tmp_path: Path) -> None:
    worker = bench.worker()
    job = submit_count(bench, tmp_path / "w", steps=2000, seconds=0.01, trick="flood")
    running = wait_for_steps(bench, job, 20)
    worker.kill()
    wait_until(lambda: not Path(f"/proc/{running.child['pid']}").exists(), 60, "the child's end")
    log = attempt.log_path(bench.settings, job.id)
    last_number = max(int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("line "))
    assert last_number >= max(steps(tmp_path / "w")), "every line it printed before its end"
    assert "BrokenPipe" not in log.read_text()


def test_a_log_is_rotated_in_place_and_given_up_on_a_full_disk(small_disk: Path) -> None:
    log = small_disk / "job.log"
    with log.open("ab", buffering=0) as child:
        child.write(b"old\n" * 100)
        assert not rotate_if_full(log, 1000)
        child.write(b"new\n" * 200)
        assert rotate_if_full(log, 1000) and log.stat().st_size == 0
        assert rotated_log(log).read_bytes() == b"old\n" * 50 + b"new\n" * 200
        child.write(b"after\n")
        assert log.read_bytes() == b"after\n", "the child goes on at the beginning"
        child.write(b"x" * (8 * MB))
        fill(small_disk, 0)
        assert rotate_if_full(log, MB) and log.stat().st_size == 0, "its space is needed most"
    assert last_line(log) == ""


def test_lines_of_a_job_name_it_as_text_and_as_json(bench: Bench, tmp_path: Path) -> None:
    bench.environment["SPECULOOS_LOG_FORMAT"] = "json"
    bench.worker()
    job = submit_count(bench, tmp_path / "w", trick="bad_input")
    bench.wait(job.id, "FAILED")
    lines = attempt.log_path(bench.settings, job.id).read_text().splitlines()
    record = json.loads(next(line for line in lines if "FAILED" in line))
    assert (record["job"], record["attempt"], record["process"], record["level"]) == (job.id, 1, "job", "error")
    assert "prompts.jsonl, line 7" in record["message"] and record["time"].endswith("+00:00")
    worker_lines = (bench.settings.home / "workers.supervise.worker.log").read_text().splitlines()
    records = [json.loads(line) for line in worker_lines if line.startswith("{")]
    assert records and all(line["process"] == "worker-io" for line in records)
    assert any(line.get("job") == job.id for line in records)
