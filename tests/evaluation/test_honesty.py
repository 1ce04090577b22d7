"""The benchmark that judges evaluations under load: its verdict, its load, and the whole way on a tiny base."""

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.honesty import QUIET, judge, main, noise


def run(speedup: float, low: float, high: float, others: float = 0.0) -> dict[str, Any]:
    figures = {"speedup": speedup, "speedup_interval": [low, high], "others": others}
    return {**figures, "mean_accepted_length": 2.0, "mean_accepted_length_interval": [1.9, 2.1]}


def taken(holding: int, quiet: float = 1.6) -> dict[str, list[dict[str, Any]]]:
    """Ten repeats under load, of which so many hold 1.6."""
    loaded = [run(1.5, 1.4, 1.7)] * holding + [run(1.3, 1.2, 1.4)] * (10 - holding)
    return {"quiet": [run(quiet, 1.5, 1.7)] * 3, "loaded": loaded, "before": [{"speedup": s} for s in (1.1, 1.9, 2.5)]}


@pytest.mark.parametrize(("holding", "holds"), [(10, True), (9, True), (8, False)])
def test_nine_intervals_in_ten_must_hold_the_quiet_figure(holding: int, holds: bool) -> None:
    verdict = judge(taken(holding))
    assert (verdict["holding"], verdict["holds"], verdict["quiet_speedup"]) == (holding, holds, 1.6)
    assert verdict["spread_before"] == [1.1, 1.9, 2.5] and verdict["impossible_before"] == 1


def test_a_repeat_that_was_refused_holds_nothing_and_is_counted() -> None:
    runs = taken(9)
    runs["loaded"][0] = {"refused": "The machine was busy", "others": 1.0}
    verdict = judge(runs)
    assert (verdict["holding"], verdict["refused"], verdict["holds"]) == (8, 1, False)


def test_one_stored_figure_that_cannot_be_fails_the_claim() -> None:
    runs = taken(10)
    runs["loaded"][3] = run(2.6, 1.5, 2.9) | {"speedup_interval": [2.2, 2.9]}
    assert judge(runs | {"loaded": [*runs["loaded"], *taken(10)["loaded"]]})["holds"] is False
    assert judge(runs)["impossible_stored"] == 1


def test_without_a_quiet_moment_there_is_no_verdict() -> None:
    runs = taken(10)
    runs["quiet"] = [run(1.6, 1.5, 1.7, others=2 * QUIET)]
    verdict = judge(runs)
    assert verdict["quiet_speedup"] is None and verdict["holding"] is None and verdict["holds"] is None


def test_the_load_is_at_work_while_it_is_asked_for_and_then_gone() -> None:
    with noise(1) as generator:
        before = sum(generator.cpu_times()[:2])
        psutil.wait_procs([generator], 1.5)
        assert sum(generator.cpu_times()[:2]) > before
    assert not psutil.pid_exists(generator.pid)


def test_the_whole_way_runs_dry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "honesty.json"
    assert main(["--dry-run", "--json", str(out)]) in (0, 1, 2), "speeds of a tiny base are not judged"
    result = json.loads(out.read_text())
    assert [len(result[name]) for name in ("quiet", "loaded", "before")] == [1, 1, 1]
    assert result["before"][0]["speedup"] > 0 and result["quiet"][0]["others"] >= 0
    assert all("refused" in one or len(one["speedup_interval"]) == 2 for one in (*result["quiet"], *result["loaded"]))
    assert result["verdict"]["repeats"] == 1 and "| quiet machine |" in capsys.readouterr().out
