"""Tuning, planning and evaluation on a busy processor: each warns about it and gives no impossible figures."""

from itertools import count

import pytest

from evaluation.acceptance import evaluate
from evaluation.machine import busy_warning
from evaluation.planner import PlanOptions, plan
from evaluation.questions import built_in
from evaluation.tuning import tune
from models.base import load_base
from speculoos import cpu_load
from speculoos.reporting import SilentReporter
from tests.evaluation.test_tuned_checkpoints import draft_for


class WarningReporter(SilentReporter):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def log(self, message: str, level: str = "info") -> None:
        if level == "warning":
            self.warnings.append(message)


@pytest.fixture
def busy_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two readings 10 s pass in which other programs take 5 s and this one 4 s."""
    readings = count()
    # patched at the lowest level: the reading of the system's counters
    monkeypatch.setattr(cpu_load, "_cpu_seconds", lambda: tuple(next(readings) * s for s in (10.0, 9.0, 4.0)))


def check(result: dict, reporter: WarningReporter) -> None:
    assert result["other_load"] == 0.5
    assert (
        result["busy"].startswith("The machine was busy: other programs took 50%")
        and result["busy"] in reporter.warnings
    )


def test_each_says_that_the_machine_was_busy(tiny_base, busy_processor) -> None:
    base, questions, reporter = load_base(tiny_base), built_in(2), WarningReporter()
    draft = draft_for(base, "medusa")
    measured = evaluate(base, None, questions[:1], reporter, max_tokens=8, options={"drafter": "ngram"})
    check(measured, reporter)
    tuned = tune(base, draft, questions, reporter := WarningReporter(), max_tokens=12)
    result = tuned.to_json()
    check(result, reporter)
    assert all(size.speedup <= size.expected_tau for size in tuned.plan.sizes)
    for key in ("expected_tau", "expected_speedup"):
        ends = result[f"{key}_interval"]
        assert (ends is None) == result["plain_is_faster"] and (ends is None or ends[0] <= result[key] <= ends[1])
    options = PlanOptions((1, 2), (1,), rounds=2, max_tokens=12)
    planned = plan(base, draft, questions[:1], reporter := WarningReporter(), options=options)
    check(planned, reporter)
    assert planned["shapes"] and planned["timing_noise"] >= 0
    for shape in planned["shapes"]:
        one = shape["by_batch"]["1"]
        assert one["speedup"] <= shape["tau"] + 1e-3
        assert (
            one["speedup_interval"][0] <= one["speedup"] + 1e-3 and one["speedup"] <= one["speedup_interval"][1] + 1e-3
        )


def test_a_quiet_machine_and_an_unsteady_clock() -> None:
    assert busy_warning(None, 0.0) == busy_warning(0.1, 0.02) == ""
    assert "± 20% only" in busy_warning(0.1, 0.1) and "other programs took 60%" in busy_warning(0.6, 0.1)
