"""Predictions checked by hand from given costs, measurements on tiny bases, and cost files of another machine."""

import json
from itertools import pairwise

import pytest
import torch
from transformers import AutoModelForCausalLM

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.stats import summarize
from decoding.target import Target, fast_target
from decoding.tree import DraftTree
from evaluation.costs import Costs, read_costs
from evaluation.meter import Meter, RepeatedBatch
from evaluation.planner import PlanOptions, plan, prompts_of, standalone, throughput_table
from evaluation.questions import built_in
from evaluation.shapes import AcceptanceCurves, DraftShape, curves_of_rates, curves_of_trace, expected_chain
from models.base import load_base
from speculoos.errors import BadInput, Cancelled
from speculoos.reporting import SilentReporter
from tests.evaluation.test_replay import draft_for

COSTS = Costs(
    target={1: {1: 10.0, 2: 10.0, 3: 11.0, 4: 12.0, 8: 16.0}, 8: {1: 20.0, 2: 38.0, 3: 56.0, 4: 74.0, 8: 150.0}},
    draft={"chain": {1: 1.0, 2: 2.0}, "tree": {1: 1.0, 2: 3.0}},
    passes={1: 1.0, 8: 2.0, 16: 4.0},
    standalone={2: {1: 2.0, 8: 3.0}, 8: {1: 9.0, 8: 12.0}},
    other=1.0,
    machine={"name": "paper"},
)
CURVES = AcceptanceCurves((0.6, 0.4), {1: {4: 1.7}, 2: {4: 1.8, 8: 2.1}}, verifications=50)


def shape(table, name):
    return next(row for row in table["shapes"] if row["name"] == name)


def test_a_prediction_is_tokens_over_the_sum_of_a_step_s_parts():
    """Plain 11 ms a token. Chain 2: 1 + 0.6 + 0.4 tokens in 11 + 2 + 1 ms. For eight sequences each pass takes 8 rows,
    1 ms more than one row: 56 + 2 · 2 + 1 ms."""
    table = throughput_table(COSTS, CURVES)
    one = shape(table, "chain 2")["by_batch"]["1"]
    assert one["step_ms"] == 14.0 and one["draft_ms"] == 2.0
    assert one["tokens_per_second"] == pytest.approx(2000 / 14, abs=0.01)
    assert one["speedup"] == pytest.approx(2 * 11 / 14, abs=1e-3)
    eight = shape(table, "chain 2")["by_batch"]["8"]
    assert eight["step_ms"] == pytest.approx(61.0)
    assert eight["tokens_per_second"] == pytest.approx(8 * 2000 / 61, abs=0.01)


def test_of_trees_of_one_size_the_fastest_depth_is_taken_and_the_verdict_says_when_it_stops():
    table = throughput_table(COSTS, CURVES)
    assert [row["name"] for row in table["shapes"]] == ["chain 1", "chain 2", "tree of 4", "tree of 8"]
    assert shape(table, "tree of 4")["depth"] == 1, "1.8 tokens in 16 ms are fewer than 1.7 in 14"
    assert table["best"] == {"1": "chain 2", "8": "plain"} and table["stops_at"] == 8
    assert "chain 2 is fastest, 1.57 × the baseline" in table["verdict"] and "At batch sizes of 8" in table["verdict"]


def test_a_draft_that_never_pays_has_that_verdict():
    table = throughput_table(COSTS, AcceptanceCurves((0.01,), verifications=9))
    assert (
        table["best"]["1"] == "plain" and "is slower than plain decoding" in table["verdict"] and table["stops_at"] == 1
    )


def test_a_standalone_draft_breaks_even_where_its_speedup_is_one():
    """Eight layers take 9 ms a token and a plain step 11 ms, so no acceptance rate pays."""
    two, eight = standalone(COSTS, 2), standalone(COSTS, 8)
    needed = two["needed_acceptance"]
    best = max(expected_chain(needed, d) * 11 / COSTS.standalone_step(2, d) for d in range(1, 6))
    assert best == pytest.approx(1.0, abs=0.01)
    assert eight["needed_acceptance"] is None or eight["needed_acceptance"] > needed
    assert two["speedups"]["0.9"]["speedup"] > two["speedups"]["0.5"]["speedup"]


def test_figures_of_another_machine_go_to_a_file_and_back(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS.to_json()))
    assert read_costs(path) == COSTS


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "valid dictionary"),
        ({"target_ms": {"2": {"1": 1}}}, '"1"'),
        ({"target_ms": {"1": {"1": -1}}}, "target_ms"),
        ({"target_ms": {"1": {"1": True}}}, "target_ms"),
        ({"target_ms": {"one": {"1": 1}}}, "target_ms"),
        ({"target_ms": {"9" * 5000: {"1": 1}}}, "target_ms"),
        ({"target_ms": {"1": {"1": 10**400}}}, "target_ms"),
        ({"target_ms": {"1": {"1": 0}}}, "take time"),
        ({"target_ms": {"1": {"1": 1}, "2": {}}}, "take time"),
        ({"target_ms": {"1": {"1": 1}}, "standalone_ms": {"2": {"1": 1}}}, "more rows than one"),
        ({"target_ms": {"1": {"1": 1, "2": 1}}, "standalone_ms": {"2": {"2": 1}}}, "standalone_ms needs"),
        ({"target_ms": {"1": {"1": 1}}, "draft_ms": {"vine": {}}}, "draft_ms"),
        ({"target_ms": {"1": {"1": 1}}, "other_ms": "1"}, "other_ms"),
        ({"target_ms": {"1": {"1": 1}}, "pass_ms": [1]}, "pass_ms"),
        ({"target_ms": {"1": {"1": 1}}, "standalone_ms": {"0": {}}}, "standalone_ms"),
    ],
)
def test_a_file_without_figures_is_refused_by_its_key(tmp_path, data, message):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(data))
    with pytest.raises(BadInput, match=message):
        read_costs(path)


def test_acceptance_comes_from_traces_and_from_rates(tiny_base):
    base = load_base(tiny_base)
    draft, target = draft_for(base, "draft"), fast_target(base, 256)
    drafter = make_drafter(target, draft, {"depth": 3})
    steps = list(generate(target, drafter, list(range(12)), GenerateConfig(max_tokens=60, eos_ids=frozenset())))
    curves = curves_of_trace(steps)
    expected = summarize(steps)
    assert 1 + sum(curves.chain) == pytest.approx(expected.mean_accepted_length)
    assert 1 + sum(curves_of_rates(expected.acceptance_by_depth).chain) == pytest.approx(expected.mean_accepted_length)


@pytest.mark.parametrize("method", ["medusa", "eagle", "eagle3", "peagle", "dflash", "draft"])
def test_a_plan_of_every_method_predicts_chains_and_trees(tiny_base, method):
    base = load_base(tiny_base)
    draft = draft_for(base, method)
    rounds = 2 if method == "eagle3" else 1
    result = plan(
        base, draft, built_in(2), SilentReporter(), options=PlanOptions((1, 3), (1, 2, 99), rounds, max_tokens=16)
    )
    kinds = {row["kind"] for row in result["shapes"]}
    assert "chain" in kinds and ("tree" in kinds or "eagle" not in method)
    assert method != "draft" or kinds == {"chain"}
    assert set(result["plain"]["by_batch"]) == {"1", "3"}
    assert [row["layers"] for row in result["standalone"]] == [1, 2], "only layers that the base has"
    chains = [row for row in result["shapes"] if row["kind"] == "chain"]
    assert all(a["tau"] <= b["tau"] for a, b in pairwise(chains))
    assert result["verdict"] and json.loads(json.dumps(result))["costs"]["target_ms"]["3"]
    target = Target(load_base(tiny_base), 128)
    fresh = draft_for(target.base, method)
    for row in result["shapes"]:
        drafter = make_drafter(target, fresh, row["options"])
        prompt = prompts_of(target.base, built_in(1), 40)[0]
        steps = list(generate(target, drafter, prompt, GenerateConfig(max_tokens=6, eos_ids=frozenset())))
        largest = max(len(step.draft_record.tokens) for step in steps) + 1
        assert largest <= row["nodes"], "the options make the shape that was predicted"
        target.rewind(0)


def test_a_plan_can_be_made_from_another_machine_and_a_stored_trace(tiny_base):
    base = load_base(tiny_base)
    result = plan(base, draft_for(base, "eagle3"), built_in(1), SilentReporter(), costs=COSTS, curves=CURVES)
    assert result["machine"] == {"name": "paper"} and result["basis"] == "of another machine"
    assert result["best"]["1"] == "chain 2"


def test_a_plan_stops_when_asked(tiny_base):
    class Stopping(SilentReporter):
        def stop_requested(self) -> bool:
            return True

    base = load_base(tiny_base)
    with pytest.raises(Cancelled):
        plan(base, None, built_in(1), Stopping(), options=PlanOptions((1,), (), rounds=1))


def test_the_first_layers_of_a_base_are_what_a_draft_of_them_is(tiny_base):
    """`FastForward.cut` gives the logits of a model with these layers, so its cost is that of such a draft."""
    base, whole = load_base(tiny_base), load_base(tiny_base)
    config = whole.config
    config.num_hidden_layers = 2
    config.layer_types = None
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.load_state_dict({k: v for k, v in whole.model.state_dict().items()}, strict=False)
    forward = fast_target(base, 64).forward.cut(2)
    ids = list(range(3, 11))
    ours = Target(base, 64, forward).extend(ids).logits
    theirs = model(torch.tensor([ids]), use_cache=False).logits[0]
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_disturbed_rounds_make_neither_more_rows_nor_more_layers_cheaper(tiny_base):
    meter = Meter(fast_target(load_base(tiny_base), 128), list(range(20)), batches=(1, 2), layers=(1, 2), rows=(1, 3))
    meter.round()
    meter.times["target", 1, 1] = [1e6]
    meter.times["standalone", 1, 1] = [2e6]
    costs = meter.costs()
    assert costs.target[1][1] <= costs.target[1][3] < 1e6
    assert all(costs.standalone[1][batch] <= costs.standalone[2][batch] for batch in (1, 2))


def test_measuring_leaves_the_text_as_it_was(tiny_base):
    base = load_base(tiny_base)
    target = fast_target(base, 128)
    meter = Meter(target, list(range(20)), batches=(1, 2), layers=(1,), rows=(1, 3))
    meter.round()
    costs = meter.costs()
    assert set(costs.target) == {1, 2} and set(costs.target[2]) == {1, 3} and set(costs.standalone[1]) == {1, 2}
    many = RepeatedBatch(base, list(range(20)), 2, 3)
    assert many.milliseconds(2, 3) > 0 and many.cache.lengths == [20, 20]


def test_a_batch_computes_what_each_sequence_alone_does(tiny_base):
    """The timed work is real: it gives the same best tokens as a single sequence."""
    base = load_base(tiny_base)
    target = fast_target(base, 128)
    text = list(range(20))
    target.prefill(text)
    alone = target.forward_tree(DraftTree.chain(text[:3]), argmax_only=True).best.tolist()
    many, outputs = RepeatedBatch(base, text, 2, 3), []
    forward = many.forward
    many.forward = lambda *arguments: outputs.append(forward(*arguments)) or outputs[-1]
    many.milliseconds(2, 3)
    assert outputs[-1].best.tolist() == alone * 2


def test_a_shape_without_drafting_costs_nothing_to_draft():
    assert COSTS.drafting(DraftShape("plain"), 8) == 0.0
    with pytest.raises(BadInput, match="draft_ms"):
        Costs({1: {1: 1.0, 2: 1.0}}).drafting(DraftShape("chain", 2, 1), 1)
