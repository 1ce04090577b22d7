"""Metrics find their chart by name."""

import pytest

from app.views.metrics_view import chart_of, charts, groups_of


@pytest.mark.parametrize(
    ("name", "chart", "series"),
    [
        ("train/loss", "loss", "training"),
        ("eval/top1_head2", "top1, held out", "head 2"),
        ("eval/acceptance_depth10", "acceptance, held out", "depth 10"),
        ("tau", "tau", "Expected mean accepted length (τ)"),
        ("gpu/memory_gb/GPU-5d3b1c21", "gpu_memory_gb", "GPU-5d3b1c21"),
        ("train/something_new", "something_new", "training"),
    ],
)
def test_a_metric_knows_its_chart_and_series(name, chart, series):
    assert chart_of(name) == (chart, series)


def test_training_and_held_out_loss_share_a_chart_and_loss_comes_first():
    points = [(0, 1.0)]
    groups = groups_of(
        {"train/lr": points, "eval/top1_head10": points, "eval/top1_head2": points, "train/loss": points}
    )
    assert list(groups) == ["loss", "top1, held out", "lr"]
    assert list(groups["top1, held out"]) == ["head 2", "head 10"]


def test_accuracies_are_drawn_as_shares_and_no_metric_draws_nothing():
    assert "50%" in charts({"eval/top1_head1": [(0, 0.5)]})
    assert charts({}) == ""
