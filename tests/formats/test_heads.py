"""Base models whose head is more than a matrix product: exports accept a scale or a cap, which keep the order of the
tokens, and refuse a bias by name."""

import pytest

from formats.export import build_export
from formats.options import export_options
from formats.proof import DraftComparison
from formats.refusals import no_server_reason
from models.base import load_base
from models.checkpoints import save_draft
from speculoos.reporting import SilentReporter
from tests.formats.conftest import draft_of
from tests.tiny import make_tiny_base

HEAD_OPTIONS = {"granite": {"logits_scaling": 4.0}, "gemma2": {"final_logit_softcapping": 5.0, "head_dim": 8}}


@pytest.mark.parametrize("family", [*HEAD_OPTIONS])
def test_a_base_with_a_scale_or_a_cap_is_exported(family, tmp_path):
    base = load_base(make_tiny_base(tmp_path / "base", family, num_hidden_layers=8, **HEAD_OPTIONS[family]))
    for kind in ("eagle", "eagle3", "peagle", "medusa", "medusa-shared"):
        folder = save_draft(tmp_path / kind, draft_of(kind, base), {"base": family})
        report = build_export(folder, base, "vllm", tmp_path / f"out-{kind}")
        assert report.passed, report.failures


@pytest.mark.parametrize(
    ("difference", "rounding", "passed"),
    [(0.9e-4, 0.0, True), (1.4e-4, 0.0, False), (1.4e-4, 6e-5, True), (1.4e-4, 1e-6, False), (2e-3, 1.0, False)],
)
def test_the_tolerance_grows_with_the_rounding_of_the_input(difference, rounding, passed):
    """To at most 1e-3."""
    assert DraftComparison(SilentReporter(), difference, rounding, positions=1).checks()[0].passed is passed


def test_a_bias_of_the_head_is_refused_by_name(tmp_path):
    """Phi's head has one, and no server's draft classes add it."""
    base = load_base(make_tiny_base(tmp_path / "base", "phi", num_hidden_layers=8))
    assert all("in Speculoos only" in no_server_reason(method, base.path) for method in ("medusa", "eagle", "eagle3"))
    assert no_server_reason("draft", base.path) == no_server_reason("medusa", tmp_path / "gone") == ""
    for kind in ("eagle", "eagle3", "medusa", "medusa-shared", "dflash", "draft"):
        folder = save_draft(tmp_path / kind, draft_of(kind, base), {"base": "phi"})
        for option in export_options(folder, base.path):
            if option.name in ("own", "huggingface"):
                assert option.possible == (option.name == "own" or kind in ("draft", "dflash"))
            else:
                assert not option.possible
            if option.name == "vllm" and kind != "draft":
                assert "bias" in option.reason
    assert build_export(tmp_path / "draft", base, "huggingface", tmp_path / "out").passed
