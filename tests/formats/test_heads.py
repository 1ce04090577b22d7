"""Bases whose head is no plain product: a bias is refused by name, a scale or a cap changes no order and goes along."""

import pytest

from formats.export import build_export
from formats.options import export_options
from formats.proof import DraftComparison
from formats.refusals import no_server_reason
from models.base import load_base
from models.checkpoints import save_draft
from tests.formats.conftest import draft_of
from tests.tiny import make_tiny_base

BENT = {"granite": {"logits_scaling": 4.0}, "gemma2": {"final_logit_softcapping": 5.0, "head_dim": 8}}


@pytest.mark.parametrize("family", [*BENT])
def test_a_scale_or_a_cap_of_the_base_goes_along(family, tmp_path):
    base = load_base(make_tiny_base(tmp_path / "base", family, num_hidden_layers=8, **BENT[family]))
    for kind in ("eagle", "eagle3", "peagle", "medusa", "medusa-shared"):
        folder = save_draft(tmp_path / kind, draft_of(kind, base), {"base": family})
        report = build_export(folder, base, "vllm", tmp_path / f"out-{kind}")
        assert report.passed, report.failures


@pytest.mark.parametrize(
    ("difference", "rounding", "near"),
    [(0.9e-4, 0.0, True), (1.4e-4, 0.0, False), (1.4e-4, 6e-5, True), (1.4e-4, 1e-6, False), (2e-3, 1.0, False)],
)
def test_what_a_rounding_of_the_input_does_bounds_the_proof(difference, rounding, near):
    """And never more than 1e-3."""
    assert DraftComparison(difference, rounding, positions=1).checks()[0].passed is near


def test_a_bias_of_the_head_is_refused_by_name(tmp_path):
    """Phi: no server's draft classes add one."""
    base = load_base(make_tiny_base(tmp_path / "base", "phi", num_hidden_layers=8))
    assert all("in Speculoos only" in no_server_reason(method, base.path) for method in ("medusa", "eagle", "eagle3"))
    assert no_server_reason("draft", base.path) == no_server_reason("medusa", tmp_path / "gone") == ""
    for kind in ("eagle", "eagle3", "medusa", "medusa-shared", "draft"):
        folder = save_draft(tmp_path / kind, draft_of(kind, base), {"base": "phi"})
        for option in export_options(folder, base.path):
            if option.name in ("own", "huggingface"):
                assert option.possible == (option.name == "own" or kind == "draft")
            else:
                assert not option.possible
            if option.name == "vllm" and kind != "draft":
                assert "bias" in option.reason
    assert build_export(tmp_path / "draft", base, "huggingface", tmp_path / "out").passed
