"""The logits of a base's head and logit rule equal those of its forward in transformers."""

import pytest
import torch
from torch.nn import functional as F

from models.base import load_base
from models.families import IDENTITY_RULE, LogitRule, logit_rule
from models.logits import Head, apply_logit_rule, apply_logit_rule_, check_logits, logit_rule_derivative
from speculoos.errors import Unsupported
from tests.tiny import FAMILIES, make_tiny_base

MOE = {"num_local_experts": 2, "num_experts_per_tok": 1}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 8}
SPECIAL_HEADS = {
    "phi": ("phi", {}, IDENTITY_RULE),
    "granite": (*FAMILIES["granite"], LogitRule(1 / 3)),
    "gemma2": (*FAMILIES["gemma2"], LogitRule(cap=20.0)),
    "cohere": (*FAMILIES["cohere"], LogitRule(0.3)),
    "gemma3_text": ("gemma3_text", {"head_dim": 8, "final_logit_softcapping": 2.0}, LogitRule(cap=2.0)),
    "nanochat": ("nanochat", {"final_logit_softcapping": 2.0}, LogitRule(cap=2.0)),
    "granitemoe": ("granitemoe", {"logits_scaling": 4.0, **MOE}, LogitRule(0.25)),
    "minicpm3": ("minicpm3", {"dim_model_base": 8, **LATENT}, LogitRule(0.25)),
    "hyperclovax": ("hyperclovax", {"logits_scaling": 4.0}, LogitRule(4.0)),
}


@pytest.fixture(scope="module", params=SPECIAL_HEADS)
def base(request, tmp_path_factory):
    kind, overrides, rule = SPECIAL_HEADS[request.param]
    base = load_base(make_tiny_base(tmp_path_factory.mktemp(kind), kind, num_hidden_layers=2, **overrides))
    assert base.logit_rule == rule
    return base


@torch.no_grad()
def test_logits_are_those_of_transformers(base):
    ids = torch.arange(40, 60)[None]
    hidden, _ = base.forward_hidden(ids)
    theirs = base.model(ids).logits
    for ours in (base.logits(hidden), base.head(hidden), base.head.to(torch.float32)(hidden)):
        assert torch.allclose(ours, theirs, atol=1e-5)
    token_ids = torch.tensor([300, 2, 77])
    assert torch.allclose(base.head.rows(token_ids)(hidden), theirs[..., token_ids], atol=1e-5)
    product = F.linear(hidden, base.lm_head.weight)
    assert (product - theirs).abs().max() > 0.5, "the product alone would be wrong"
    check_logits(base)


def test_logits_computed_in_an_unknown_way_are_refused(base, monkeypatch):
    monkeypatch.setitem(vars(base), "logit_rule", LogitRule(1.7, 5.0))
    with pytest.raises(Unsupported, match="in an unknown way"):
        check_logits(base)


def test_a_half_precision_base_is_no_worse_than_its_rounding(tmp_path):
    kind, overrides = FAMILIES["granite"]
    check_logits(load_base(make_tiny_base(tmp_path, kind, **overrides), "bfloat16"))


@pytest.mark.parametrize("rule", [IDENTITY_RULE, LogitRule(0.3), LogitRule(cap=3.0), LogitRule(1.5, 2.0)])
def test_the_slope_is_the_derivative(rule):
    product = (3 * torch.randn(5, 7)).double().requires_grad_()
    logits = apply_logit_rule(product, rule)
    (expected,) = torch.autograd.grad(logits.sum(), product)
    assert torch.allclose(logit_rule_derivative(logits.detach(), rule) * torch.ones_like(expected), expected)
    assert torch.equal(apply_logit_rule_(product.detach().clone(), rule), logits) and (
        rule != IDENTITY_RULE or logits is product
    )


def test_a_folded_head_is_a_plain_linear_layer():
    head, x = Head(torch.randn(9, 4), torch.randn(9), LogitRule(0.3)), torch.randn(3, 4)
    folded = head.folded()
    assert folded.rule == IDENTITY_RULE and torch.allclose(folded(x), head(x), atol=1e-6)
    assert Head(head.weight).folded().weight is head.weight, "nothing is copied where there is nothing to fold"


def test_a_setting_has_the_meaning_of_its_family():
    assert logit_rule({"model_type": "granite", "logits_scaling": 8.0}) == LogitRule(0.125)
    assert logit_rule({"model_type": "hyperclovax", "logits_scaling": 8.0}) == LogitRule(8.0)
    assert logit_rule({"model_type": "llama", "logits_scaling": 8.0}) == IDENTITY_RULE, "as in transformers"
    assert logit_rule({"model_type": "gemma2", "final_logit_softcapping": None}) == IDENTITY_RULE
