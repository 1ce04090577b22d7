"""A matrix on real processes: each cell is an evaluation, kills cost no finished cell, and cells that cannot be
measured are reported."""

import random
from pathlib import Path

import pytest

from cli.commands.matrix import expected
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tests.workers.conftest import Bench
from tests.workers.matrix_bench import (
    add_model,
    add_suites,
    cells,
    check_whole,
    kill_a_child,
    matrix,
    measured,
    wait_measured,
)
from tests.workers.test_bodies import begin  # noqa: F401
from tracking import db
from tracking.tables import Checkpoint
from workers.child.work import evaluate as work
from workers.jobs import estimates
from workers.jobs import matrix as matrix_module
from workers.jobs.estimates import START_SECONDS
from workers.jobs.requests import Evaluate, Matrix
from workers.jobs.submit import request_cancel, retry, submit

pytestmark = pytest.mark.integration

FORKED = True
TREES = [{"tree": [[0]]}, {"tree": [[0, 0], [1, 0]]}]
SMALL = {"limit": 2, "max_tokens": 6, "drafting": TREES, "temperatures": [0.0, 1.0]}


def test_a_killed_matrix_goes_on_and_measures_no_cell_twice(bench: Bench, tiny_base: Path) -> None:
    bench.environment["SPECULOOS_LEASE_SECONDS"] = "3"  # also of the device of a cell that ends as its worker is killed
    base_id, heads = add_model(bench.settings, tiny_base, 1)
    bench.worker("io")
    suites = add_suites(bench, ["mt_bench", "gsm8k"], 4)
    workers = [bench.worker("gpu")]
    reconciler = bench.reconciler()
    job = matrix(bench, base_id, heads, suites, **{**SMALL, "drafting": TREES[1:]})
    wait_measured(bench, job, 1)
    rng = random.Random(5)
    assert kill_a_child(bench, job, rng) or measured(bench, job)
    wait_measured(bench, job, 2)
    for process in (*workers, reconciler):
        process.kill()
    before = {row.id: (row.result, row.job_id) for row in measured(bench, job)}
    assert 2 <= len(before) < 4, "it was killed in mid-run"
    bench.worker("gpu")
    bench.reconciler()
    bench.wait(job.id, "SUCCEEDED", 400)
    check_whole(bench, job, 4)
    after = {row.id: (row.result, row.job_id) for row in measured(bench, job)}
    assert before.items() <= after.items(), "a measured cell was measured again"
    with db.reading(bench.settings) as session:
        assert session.get_one(Checkpoint, heads[0]).figures == {}, "a matrix is not how the checkpoint is used"


@pytest.mark.drill  # minutes; the suite keeps the killed one
def test_a_stopped_matrix_keeps_its_cells_and_a_retry_measures_the_others(bench: Bench, tiny_base: Path) -> None:
    base_id, heads = add_model(bench.settings, tiny_base, 1)
    bench.worker("gpu")
    bench.reconciler()
    job = matrix(bench, base_id, heads, [""], **SMALL)
    wait_measured(bench, job, 1)
    request_cancel(job.id, bench.settings)
    stopped = bench.wait(job.id, "CANCELLED")
    kept = {row.id for row in measured(bench, job)}
    assert f"{len(kept)} of 4 evaluations are kept" in stopped.error
    retry(job.id, bench.settings)
    bench.wait(job.id, "SUCCEEDED")
    check_whole(bench, job, 4)
    assert kept <= {row.id for row in measured(bench, job)}


def test_a_cell_that_cannot_be_measured_stops_no_other(bench: Bench, tiny_base: Path) -> None:
    """Medusa with two heads cannot draft a chain of five, which only shows while drafting."""
    base_id, heads = add_model(bench.settings, tiny_base, 1)
    bench.worker("gpu")
    bench.reconciler()
    options = {"limit": 1, "max_tokens": 4, "drafting": [{"tree": [[0] * 5]}, TREES[0]], "temperatures": [0.0, 0.5]}
    job = matrix(bench, base_id, heads, ["", ""], **options)
    failed = bench.wait(job.id, "FAILED", 400)
    assert "2 of 4 evaluations failed; number 1: The tree is 5 deep" in failed.error
    assert len(measured(bench, job)) == 2
    assert sorted(cell.state for cell in cells(bench, job)) == ["FAILED"] * 2 + ["SUCCEEDED"] * 2


def test_cells_are_what_can_be_combined(home: Settings, tiny_base: Path) -> None:
    base_id, heads = add_model(home, tiny_base, 1)
    models = [{"base_id": base_id, "checkpoint_id": ""}, {"base_id": base_id, "checkpoint_id": heads[0]}]
    trees = [{}, {"tree": [[0]]}, {"drafter": "ngram"}, {"depth": 3, "top_k": 2}]
    request = Matrix(models=models, drafting=trees, temperatures=[0.0, 1.0], top_ps=[1.0, 0.9])
    with db.reading(home) as session:
        evaluations = matrix_module.matrix_evaluations(session, request)
        assert len(evaluations) == 12, "greedy once, sampled with each top-p: plain, n-gram; own tree, static tree"
        assert {cell.evaluation_id for cell in evaluations} == {""}
        named, again = (matrix_module.matrix_evaluations(session, request, "job") for _ in range(2))
        assert len({cell.evaluation_id for cell in named}) == 12 and named == again
        assert (
            matrix_module.cell_name(session, named[-1])
            == "tiny@heads-0 · Built-in questions · T 1 · top-p 0.9 · chain 1"
        )
        estimate = estimates.estimate(session, request, home.home)
        alone = [estimates.estimate(session, cell, home.home) for cell in evaluations]
    assert estimate.seconds == pytest.approx(sum(cell.seconds for cell in alone))
    assert estimate.seconds > 12 * START_SECONDS["gpu"]
    assert estimate.work == pytest.approx(sum(cell.work for cell in alone))
    assert estimate.memory == max(cell.memory for cell in alone) and estimate.basis == alone[0].basis


def test_progress_of_a_matrix_counts_each_cell_as_it_counts_itself(begin, home: Settings, tiny_base: Path) -> None:  # noqa: F811
    """The total assumes three passes for a cell with a drafter, the worst case; else progress would fall back later."""
    base_id, heads = add_model(home, tiny_base, 1)
    models = [{"base_id": base_id, "checkpoint_id": ""}, {"base_id": base_id, "checkpoint_id": heads[0]}]
    division = work.run_matrix(*begin(Matrix(models=models, limit=2)))
    assert [shard.total for shard in division.shards] == [2, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperatures": []}, "There is nothing to measure"),
        ({"temperatures": [-1.0]}, "Temperature: expected 0 to 5, got -1"),
        ({"top_ps": [0.0]}, "Top-p: expected more than 0"),
        ({"dtypes": ["int3"]}, "Precision 'int3'"),
        ({"limit": 0}, "expected 1 to 100000"),
        ({"temperatures": [n / 1000 for n in range(1001)]}, "1,001 evaluations, the maximum is 1,000"),
        ({"temperatures": [0.0] * 1000, "suites": [""] * 1000}, "1,000,000 combinations; at most 50,000"),
        ({"drafting": [{"depth": 2}]}, "There is nothing to measure"),
    ],
)
def test_what_cannot_be_a_matrix_is_refused_before_it_starts(
    home: Settings, tiny_base: Path, changes: dict[str, object], message: str
) -> None:
    base_id, heads = add_model(home, tiny_base, 1)
    models = [{"base_id": base_id, "checkpoint_id": heads[0]}]
    with pytest.raises(BadInput, match=message):
        submit(Matrix(**{"models": models, **changes}), settings=home)


def test_an_evaluation_is_refused_with_numbers_that_cannot_be(home: Settings, tiny_base: Path) -> None:
    base_id, _ = add_model(home, tiny_base, 0)
    with pytest.raises(BadInput, match="Temperature"):
        submit(Evaluate(base_id=base_id, temperature=9.0), settings=home)
    with pytest.raises(BadInput, match="A server sets its own draft"):
        submit(Evaluate(base_id=base_id, endpoint="x", drafting={"depth": 3}), settings=home)
    with pytest.raises(BadInput, match="Choose what to measure"):
        submit(Evaluate(), settings=home)


def test_an_estimate_alone_refuses_what_a_submit_refuses(home: Settings, tiny_base: Path) -> None:
    base_id, _ = add_model(home, tiny_base, 0)
    request = Matrix(models=[{"base_id": base_id, "checkpoint_id": ""}], dtypes=["int3"])
    with pytest.raises(BadInput, match="Precision"):
        expected(home, request)
