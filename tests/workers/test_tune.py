"""The job `tune`: what it finds, where it stores it, and that a stopped tuning leaves the checkpoint unchanged."""

import json
import os
import signal
from pathlib import Path

import pytest

from decoding.drafters import make_drafter
from decoding.target import Target
from models.base import load_base
from models.checkpoints import load_draft, read_config, verify_sums
from models.identity import weights_sha256
from speculoos.errors import BadInput, Cancelled, Fenced
from speculoos.settings import Settings
from tests.serving.conftest import make_cycle_base, make_heads
from tests.workers.conftest import Bench, wait_until
from tests.workers.test_bodies import begin  # noqa: F401
from tracking import db, jobs
from tracking.tables import Base, Checkpoint, Job
from workers.child.work import measure
from workers.jobs.requests import Tune
from workers.jobs.submit import submit

pytestmark = pytest.mark.integration

FORKED = True


@pytest.fixture(scope="module")
def cycle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cycle_base(tmp_path_factory.mktemp("cycle"))


def add(settings: Settings, cycle: Path, folder: Path | None = None, wrong: bool = False) -> Checkpoint:
    """Add the cycle base with heads that are always right or, with `wrong`, never."""
    sha = weights_sha256(cycle)
    folder = make_heads(folder or settings.home / "checkpoints" / "heads" / "attempt-1", cycle, sha, wrong)
    base = Base(id="base", name="cycle", source="folder", location="", path=str(cycle), state="ready")
    base.weights_sha256, base.card = sha, {"parameters": 10**5}
    row = Checkpoint(id="heads", name="heads", method="medusa", state="ready", base_id="base", base_sha256=sha)
    row.path, row.figures = str(folder), {"speedup": 1.5}
    with db.writing(settings) as session:
        session.add(base)
        session.flush()
        session.add(row)
    return row


def tune_request(**changes) -> Tune:
    return Tune(base_id="base", checkpoint_id="heads", **{"limit": 2, "max_tokens": 16, **changes})


def stored(settings: Settings) -> Checkpoint:
    with db.reading(settings) as session:
        return session.get_one(Checkpoint, "heads")


def test_the_fastest_tree_is_kept_with_where_it_was_found(begin, home, cycle):  # noqa: F811
    row = add(home, cycle)
    request, context = begin(tune_request())
    result = measure.run_tune(request, context)
    figures = stored(home).figures
    assert figures["tuned"] == {key: value for key, value in result.items() if key != "checkpoint_id"}
    assert figures["speedup"] == 1.5, "what was measured stays"
    assert not result["plain_is_faster"] and result["expected_speedup"] > 1 and result["kept"]
    assert result["by_rank"][0][0] == 1.0 and result["verifications"] > 4
    assert (result["dtype"], result["machine"]["device"], result["questions"]) == ("float32", "cpu", 2)
    assert result["verdict"] == figures["tuning"] and json.dumps(result)
    folder = Path(row.path)
    verify_sums(folder)
    assert read_config(folder)["drafting"] == result["drafting"]
    base = load_base(cycle)
    drafter = make_drafter(Target(base, 64), load_draft(folder, base))
    assert drafter.growth.nodes == result["nodes"]


def test_where_plain_decoding_is_faster_that_is_the_verdict_and_the_files_stay(begin, home, cycle):  # noqa: F811
    row = add(home, cycle, wrong=True)
    before = (Path(row.path) / "config.json").read_bytes()
    request, context = begin(tune_request(dtype="bfloat16"))
    result = measure.run_tune(request, context)
    assert result["plain_is_faster"] and not result["drafting"] and not result["kept"]
    assert "Plain decoding is faster" in stored(home).figures["tuning"] and result["dtype"] == "bfloat16"
    assert (Path(row.path) / "config.json").read_bytes() == before


@pytest.mark.parametrize("case", ["not asked to", "elsewhere"])
def test_files_are_left_as_they_are(begin, home, cycle, tmp_path, case):  # noqa: F811
    row = add(home, cycle, tmp_path / "installed" if case == "elsewhere" else None)
    before = (Path(row.path) / "config.json").read_bytes()
    request, context = begin(tune_request(keep=case == "elsewhere"))
    result = measure.run_tune(request, context)
    assert result["drafting"] and not result["kept"]
    assert (Path(row.path) / "config.json").read_bytes() == before and stored(home).figures["tuned"]


def test_an_attempt_that_is_over_changes_nothing(begin, home, cycle):  # noqa: F811
    row = add(home, cycle)
    before = (Path(row.path) / "config.json").read_bytes()
    request, context = begin(tune_request())
    with db.writing(home) as session:
        jobs.interrupt(session, context.job_id, context.attempt, "away")
        jobs.claim(session, context.job_id, "another", 60)
    with pytest.raises(Fenced):
        measure.run_tune(request, context)
    assert (Path(row.path) / "config.json").read_bytes() == before and "tuned" not in stored(home).figures


def test_a_stop_ends_it_between_questions(begin, home, cycle):  # noqa: F811
    add(home, cycle)
    request, context = begin(tune_request())
    context.stop_requested = lambda: True
    with pytest.raises(Cancelled):
        measure.run_tune(request, context)
    assert "tuned" not in stored(home).figures


@pytest.mark.parametrize("numbers", [{"limit": 0}, {"max_tokens": 0}])
def test_numbers_that_cannot_be_are_refused(home, cycle, numbers):
    add(home, cycle)
    with pytest.raises(BadInput):
        submit(tune_request(**numbers), settings=home)


def test_a_killed_tuning_is_made_again(bench: Bench, cycle: Path) -> None:
    row = add(bench.settings, cycle)
    bench.worker("gpu")
    bench.reconciler()
    job = submit(tune_request(limit=8, max_tokens=400), settings=bench.settings)
    wait_until(lambda: 1 <= bench.job(job.id).done < 9 and bench.job(job.id).child, 240, "its first question")
    os.kill(bench.job(job.id).child["pid"], signal.SIGKILL)
    done: Job = bench.wait(job.id, "SUCCEEDED", 180)
    assert done.attempt == 2 and (done.done, done.total, done.unit) == (9, 9, "measurements")
    assert done.estimated_seconds and done.work > 0
    verify_sums(Path(row.path))
    assert stored(bench.settings).figures["tuned"]["job_id"] == job.id
