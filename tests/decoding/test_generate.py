"""Edge cases of the decoding loop: seeds, end tokens, stop texts, limits, cancellation, prefix reuse, records."""

import json
import sys

import pytest
import torch

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.sampling import LogitsWarper
from decoding.stats import summarize
from decoding.step import Step
from decoding.target import Target
from decoding.text import TextStream
from decoding.tree import shape_from_choices
from models.dflash import DFlashDraft
from models.eagle import EagleDraft
from models.eagle3 import Eagle3Draft
from models.peagle import PEagleDraft
from speculoos.errors import BadInput, Unavailable
from tests.decoding.conftest import greedy, ids_of, run, tokens_of
from tests.decoding.replay import ReplayDrafter

SHAPE = shape_from_choices([[0, 0, 0], [1, 0], [1, 1]])


@pytest.fixture
def prompt(base):
    return ids_of(base, "the lazy dog checks them")


@pytest.fixture(scope="module")
def expected(base):
    return greedy(base, ids_of(base, "the lazy dog checks them"), 48)[0]


def replay(base, expected, shape=SHAPE):
    return ReplayDrafter(expected, shape, base.vocab_size)


def guesses(steps):
    return [(step.draft_record.tokens, step.draft_record.parents) for step in steps]


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(base, prompt):
    drafter = make_drafter(Target(base, 128), None, {"drafter": "ngram"})
    short = {"max_tokens": 32}
    outputs = [tokens_of(run(Target(base, 128), drafter, prompt, temperature=1.0, seed=s, **short)) for s in (1, 1, 2)]
    assert outputs[0] == outputs[1] != outputs[2]
    unseeded = [tokens_of(run(Target(base, 128), drafter, prompt, temperature=1.5, **short)) for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_an_end_token_inside_an_accepted_path_cuts_the_step_and_ends_the_text(base, prompt, expected):
    end = next(t for i, t in enumerate(expected) if i > 6 and t not in expected[:i])
    at = expected.index(end)
    target = Target(base, 128)
    steps = run(target, replay(base, expected, 4), prompt, max_tokens=48, eos_ids=frozenset({end}))
    assert tokens_of(steps) == expected[: at + 1]
    assert steps[-1].finish == "stop" and steps[-1].tokens[-1].id == end
    assert [s.finish for s in steps[:-1]] == [None] * (len(steps) - 1)
    assert target.ids == prompt + expected[:at], "every emitted token but the last is in the cache"
    target.cache.check_integrity()


def test_the_bases_own_end_tokens_count_unless_others_are_given(base, prompt, expected):
    base_ends = base.eos_ids
    assert base.tokenizer.eos_token_id in base_ends
    object.__setattr__(base, "eos_ids", base_ends | {expected[5]})
    try:
        steps = run(Target(base, 128), replay(base, expected), prompt, max_tokens=48, eos_ids=None)
    finally:
        object.__setattr__(base, "eos_ids", base_ends)
    assert tokens_of(steps) == expected[: expected.index(expected[5]) + 1] and steps[-1].finish == "stop"


@pytest.mark.parametrize("count", [1, 2, 5, 17])
def test_max_tokens_is_exact_and_a_cut_step_does_not_count(base, prompt, expected, count):
    steps = run(Target(base, 128), replay(base, expected, 3), prompt, max_tokens=count)
    assert tokens_of(steps) == expected[:count] and steps[-1].finish == "length"
    cut = steps[-1].kind == "verify" and len(steps[-1].tokens) < 4
    assert steps[-1].counted is (count > 1 and not cut)
    assert summarize(steps).mean_accepted_length in (0.0, 4.0)


def test_generation_ends_where_the_model_is_full_and_trees_are_clipped_to_fit(base, prompt, expected):
    target = Target(base, len(prompt) + 20)
    steps = run(target, replay(base, expected, 6), prompt, max_tokens=1000)
    assert tokens_of(steps) == expected[:20] and steps[-1].finish == "length"


def test_stop_texts_end_the_answer_across_token_borders(base, prompt, expected):
    text = base.tokenizer.decode(expected, skip_special_tokens=True)
    decoded = {base.tokenizer.decode([t]) for t in expected}
    stop = next(s for i in range(4, len(text)) if (s := text[i : i + 3]).isascii() and not any(s in p for p in decoded))
    before = text[: text.index(stop)]
    for drafter in (make_drafter(Target(base, 128)), replay(base, expected)):
        stream = TextStream(base.tokenizer, stop=(stop,))
        steps = run(Target(base, 128), drafter, prompt, max_tokens=48, stop=(stop, "never said"))
        decoded = [t["text"] for record in stream.records(steps) for t in record["tokens"]]
        assert steps[-1].finish == "stop" and stop in base.tokenizer.decode(tokens_of(steps))
        assert "".join(decoded) == stream.text == before


def test_stop_between_steps_ends_as_cancelled_and_keeps_the_tokens_so_far(base, prompt, expected):
    calls = []

    def should_stop():
        calls.append(1)
        return len(calls) > 3

    target = Target(base, 128)
    steps = run(target, make_drafter(target), prompt, max_tokens=48, should_stop=should_stop)
    assert tokens_of(steps) == expected[:4]
    assert steps[-1].finish == "cancelled" and steps[-1].tokens == () and not steps[-1].counted
    target.cache.check_integrity()


def test_a_consumer_may_leave_at_any_step_and_start_again(base, prompt, expected):
    from decoding.generate import generate

    target, drafter = Target(base, 128), replay(base, expected)
    for _step, _ in zip(generate(target, drafter, prompt, GenerateConfig(max_tokens=48)), range(3), strict=False):
        pass
    assert tokens_of(run(target, drafter, prompt, max_tokens=48)) == expected


@pytest.mark.parametrize("method", ["none", "ngram", "replay", "eagle", "eagle3", "peagle", "dflash", "draft"])
def test_a_second_turn_reuses_the_prefix_and_gives_the_same_output(base, prompt, method, monkeypatch):
    computed = []
    target, fresh = Target(base, 200), Target(base, 200)
    forward = target.forward

    def counting(inputs, *args):
        computed.append(len(inputs.ids))
        return forward(inputs, *args)

    counting.name = forward.name
    target.forward = counting
    torch.manual_seed(0)
    drafts = {"eagle": EagleDraft, "eagle3": Eagle3Draft, "peagle": PEagleDraft, "dflash": DFlashDraft}
    draft = drafts.get(method)
    draft = draft.from_base(base) if draft else None
    if method == "draft":
        from models.standalone import StandaloneDraft

        draft = StandaloneDraft.from_base(base, 1)

    def drafter_for(target):
        if method == "replay":
            return replay(base, [])
        return make_drafter(target, draft, {"drafter": method})

    drafter = drafter_for(target)
    first = tokens_of(run(target, drafter, prompt, max_tokens=24))
    second = [*prompt, *first, *ids_of(base, " 1 2 3 +")]
    computed.clear()
    again = run(target, drafter, second, max_tokens=24)
    assert computed[0] <= len(second) - len(prompt) - 24 + 2, "only what is new was computed"
    cold = run(fresh, drafter_for(fresh), second, max_tokens=24)
    assert tokens_of(again) == tokens_of(cold)
    assert guesses(again) == guesses(cold), "the drafter reuses what it holds, rightly"


def test_a_drafter_that_missed_a_turn_has_its_features_computed_again(base, prompt):
    torch.manual_seed(0)
    draft = EagleDraft.from_base(base)
    target = Target(base, 200)
    drafter = make_drafter(target, draft)
    run(target, make_drafter(target), prompt, max_tokens=8)  # another drafter used the target meanwhile
    warm = run(target, drafter, prompt, max_tokens=8)
    cold = run(Target(base, 200), make_drafter(target, draft), prompt, max_tokens=8)
    assert guesses(warm) == guesses(cold)


@pytest.mark.parametrize("method", [EagleDraft, Eagle3Draft, PEagleDraft, DFlashDraft])
def test_a_prefill_that_failed_can_be_repeated(base, prompt, method):
    torch.manual_seed(0)
    draft, target = method.from_base(base), Target(base, 200)
    drafter = make_drafter(target, draft)
    cold = run(target, drafter, prompt, max_tokens=8)
    run(target, make_drafter(target), ids_of(base, "1 2 3 +"), max_tokens=1)  # so that the prompt is computed again

    def fail(*_args):
        raise Unavailable("Not enough memory.")

    drafter.cache.write = fail
    with pytest.raises(Unavailable):
        run(target, drafter, prompt, max_tokens=8)
    del drafter.cache.write
    assert guesses(run(target, drafter, prompt, max_tokens=8)) == guesses(cold)


def test_steps_record_what_was_drafted_accepted_and_emitted(base, prompt, expected):
    recorded = [*expected[:4], (expected[4] + 1) % base.vocab_size, *expected[5:]]
    steps = run(Target(base, 128), replay(base, recorded, 3), prompt, max_tokens=12)
    first = steps[0].record()
    assert first["kind"] == "prefill" and first["counted"] is False and first["draft"]["tokens"] == []
    step = steps[1].record()
    assert step["index"] == 1 and step["kind"] == "verify" and step["counted"] is True
    assert step["draft"]["tokens"] == expected[1:4] and step["draft"]["parents"] == [-1, 0, 1]
    assert step["draft"]["depths"] == [1, 2, 3] and step["accepted"] == [0, 1, 2]
    assert [(t["origin"], t["depth"], t["rank"]) for t in step["tokens"]] == [
        ("draft", 1, 0),
        ("draft", 2, 0),
        ("draft", 3, 0),
        ("target", 0, 0),
    ]
    assert set(step["ms"]) == {"draft", "verify", "other"} and step["ms"]["verify"] > 0
    assert json.loads(json.dumps(step)) == step


def test_plain_decoding_is_marked_plain_and_has_a_mean_accepted_length_of_one(base, prompt, expected):
    steps = run(Target(base, 128), make_drafter(Target(base, 128)), prompt, max_tokens=8)
    assert {t.origin for s in steps for t in s.tokens} == {"plain"} and {s.kind for s in steps[1:]} == {"plain"}
    assert summarize(steps).mean_accepted_length == 1.0


@pytest.mark.parametrize("options", [{"drafter": "none"}, {"drafter": "ngram", "width": 2}])
def test_what_a_step_costs_besides_the_forward_does_not_grow_with_the_text(base, prompt, options, monkeypatch):
    """The cost is the number of executed lines of decoding and of tokens converted to text; times would be noise."""
    cost, costs, decode = 0, [], base.tokenizer.decode

    def counting_decode(ids, **kwargs):
        nonlocal cost
        cost += len(ids)
        return decode(ids, **kwargs)

    def trace(frame, event, _argument):
        nonlocal cost
        cost += event == "line"
        return trace if frame.f_globals["__name__"].startswith("decoding.") else None

    monkeypatch.setattr(base.tokenizer, "decode", counting_decode)
    target, stream = Target(base, 500), TextStream(base.tokenizer)
    config = GenerateConfig(max_tokens=490, eos_ids=frozenset(), stop=("never said",))
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for step in generate(target, make_drafter(target, None, options), prompt, config):
            stream.record(step)
            costs.append(cost)
            cost = 0
    finally:
        sys.settrace(before)
    quarter = len(costs) // 4
    early, late = (min(part) for part in (costs[1:quarter], costs[-quarter:]))  # accepted tokens cost lines too
    assert late < 2 * early


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop": ("",)}, "stop"),
        ({"acceptance": "always"}, "acceptance"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"alpha": 2.0}, "alpha"),
    ],
)
def test_bad_settings_name_the_field(fields, name):
    with pytest.raises(BadInput, match=f"^{name}: expected"):
        GenerateConfig(**fields)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafter": "oracle"}, "Unknown drafter 'oracle'"),
        ({"drafter": "medusa"}, "needs a checkpoint"),
        ({"drafter": "ngram", "tree": [[0]]}, "has no option 'tree'"),
        ({"drafter": "ngram", "depth": "deep"}, "depth: expected a whole number"),
        ({"drafter": "none", "depth": 2}, "it takes none"),
    ],
)
def test_bad_drafter_options_are_refused_in_one_sentence(base, options, message):
    with pytest.raises(BadInput, match=message):
        make_drafter(Target(base, 64), None, options)


def test_trees_that_do_not_fit_the_draft_are_refused(base):
    draft = EagleDraft.from_base(base)
    for options, message in (
        ({"tree": [0, 1]}, "list of choices"),
        ({"tree": [[0]], "depth": 2}, "cannot be combined"),
        ({"tree": [[5000]]}, "cannot be drafted"),
        ({"nodes": 0}, "nodes: expected"),
    ):
        with pytest.raises(BadInput, match=message):
            make_drafter(Target(base, 64), draft, options)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_k": 20, "seed": 3}], ids=["greedy", "sampled"])
def test_the_bases_probability_of_every_drafted_token_is_recorded_rejected_ones_too(base, prompt, expected, sampling):
    steps = run(Target(base, 256), replay(base, expected), prompt, max_tokens=12, probabilities=True, **sampling)
    text, checked, rejected = list(prompt), 0, 0
    for step in steps:
        draft_record = step.draft_record
        assert len(draft_record.probs) == len(draft_record.tokens)
        for node, p in enumerate(draft_record.probs):
            path, parent = [], draft_record.parents[node]
            while parent >= 0:
                path.insert(0, draft_record.tokens[parent])
                parent = draft_record.parents[parent]
            logits = base.model(torch.tensor([[*text, *path]])).logits[0, -1]
            warp = LogitsWarper(0.8, 20) if sampling else LogitsWarper()
            assert p == pytest.approx(float(warp(logits)[draft_record.tokens[node]]), abs=1e-4)
            checked, rejected = checked + 1, rejected + (node not in step.accepted)
        text += [token.id for token in step.tokens]
    assert checked >= rejected > 0 and (checked > rejected or sampling)
    record = next(step.record() for step in steps if step.draft_record.probs)
    assert Step.of_record(record).draft_record.probs == tuple(record["draft"]["probs"])


def test_probabilities_change_nothing_that_is_emitted_and_are_left_out_unless_asked_for(base, prompt, expected):
    plain, recorded = (
        run(Target(base, 256), replay(base, expected), prompt, max_tokens=20, probabilities=probabilities)
        for probabilities in (False, True)
    )
    assert [s.tokens for s in plain] == [s.tokens for s in recorded]
    assert not any(s.draft_record.probs for s in plain) and "probs" not in plain[1].record()["draft"]
