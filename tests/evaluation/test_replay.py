"""Replaying recorded outputs gives the same steps as running the draft; and the formats of recordings."""

import json

import pytest
import torch

from corpus.recordings import Recording, read_recordings
from corpus.rows import BadRow
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.stats import summarize
from decoding.target import fast_target
from decoding.text import token_text_reader
from evaluation.breakdown import breakdown
from evaluation.costs import Costs
from evaluation.questions import built_in
from evaluation.replay import (
    ids_of,
    open_prompt_lookup,
    open_small_model,
    open_with_base,
    project_times,
    replay,
    replay_metrics,
)
from models.base import load_base
from models.chat import render
from models.checkpoints import load_draft
from models.dflash import DFlashDraft
from models.eagle import EagleDraft
from models.eagle3 import Eagle3Draft
from models.medusa import MedusaConfig, MedusaHeads
from models.peagle import PEagleDraft
from models.standalone import StandaloneDraft
from models.starter import starter_path
from speculoos.errors import BadInput
from speculoos.reporting import SilentReporter
from speculoos.settings import PROJECT_ROOT
from tests.tools.recorded import record

QUESTIONS = [
    {"id": f"q{n}", "messages": [{"role": "user", "content": text}]} for n, text in enumerate(("a fox", "1 2 3"))
]
SHAPES = {
    "medusa tree": ("medusa", {"tree": [[0, 0], [0, 1], [1, 0], [2]]}),
    "eagle dynamic tree": ("eagle", {"depth": 2, "top_k": 3, "nodes": 8}),
    "eagle3 chain": ("eagle3", {"depth": 3, "top_k": 1, "nodes": 5}),
    "eagle3 static tree": ("eagle3", {"tree": [[0, 0, 0], [1, 0], [2]]}),
    "peagle dynamic tree": ("peagle", {"depth": 2, "top_k": 3, "nodes": 8}),
    "dflash chain": ("dflash", {"depth": 3}),
    "dflash tree": ("dflash", {"tree": [[0, 0, 0], [0, 1], [1]]}),
    "draft chain": ("draft", {"depth": 4}),
    "draft tree": ("draft", {"tree": [[0, 0, 0], [0, 1], [1]]}),
}


def draft_for(base, method: str):
    """An untrained draft that hits now and then: a tiny base repeats itself."""
    torch.manual_seed(0)
    if method == "medusa":
        return MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 2), base)
    if method == "draft":
        return StandaloneDraft.from_base(base, base.num_layers - 1)
    if method == "dflash":
        return DFlashDraft.from_base(base, block_size=4).eval()
    return {"eagle": EagleDraft, "eagle3": Eagle3Draft, "peagle": PEagleDraft}[method].from_base(base)


@pytest.fixture(scope="module")
def recordings(tiny_base, tmp_path_factory):
    """The tiny base's answers to QUESTIONS."""
    file = tmp_path_factory.mktemp("recorded") / "said.jsonl"
    assert record(load_base(tiny_base), 40, QUESTIONS, file) == 2
    return file


def facts(steps):
    """All fields of the steps except their times."""
    return [(s.index, s.kind, s.tokens, s.draft_record, s.accepted, s.counted, s.finish) for s in steps]


@pytest.mark.parametrize(("method", "options"), [*SHAPES.values()], ids=[*SHAPES])
def test_a_replay_is_step_for_step_what_running_was(recordings, tiny_base, method, options):
    base = load_base(tiny_base)
    draft = draft_for(base, method)
    target = fast_target(base, 512)
    drafter = make_drafter(target, draft, options)
    ran = []
    for row in QUESTIONS:
        target.rewind(0)
        prompt = render(base.tokenizer, row["messages"])
        ran.append(list(generate(target, drafter, prompt, GenerateConfig(max_tokens=40))))
    opened = open_with_base(base, draft, options)
    replayed = replay(read_recordings(recordings), opened.target, opened.new_drafter, SilentReporter())
    assert [facts(row.steps) for row in replayed.rows] == [facts(steps) for steps in ran]
    metrics = replay_metrics(replayed, base.tokenizer)
    parts = breakdown(ran, token_text_reader(base.tokenizer))
    assert {key: metrics[key] for key in parts} == parts, "where it does well is told of a replay as of an evaluation"
    worst = metrics["per_prompt"]
    assert sorted(row["id"] for row in worst) == ["q0", "q1"] and worst[0]["tau"] <= worst[1]["tau"]
    assert {row["id"]: row["messages"] for row in worst} == {row["id"]: row["messages"] for row in QUESTIONS}
    expected = summarize(step for steps in ran for step in steps)
    assert metrics["mean_accepted_length"] == round(expected.mean_accepted_length, 4)
    assert metrics["mean_accepted_length_interval"][0] <= expected.mean_accepted_length


@pytest.mark.parametrize("options", [{"depth": 3}, {"tree": [[0, 0], [1]]}], ids=["chain", "tree"])
def test_a_small_model_is_judged_without_its_target(recordings, tiny_base, options):
    base = load_base(tiny_base)
    draft = StandaloneDraft(load_base(tiny_base).model)
    forced = open_with_base(base, draft, options)
    alone = open_small_model(tiny_base, options)
    steps = [
        facts(replay(read_recordings(recordings), opened.target, opened.new_drafter, SilentReporter()).steps)
        for opened in (forced, alone)
    ]
    assert steps[0] == steps[1]
    assert any(len(accepted) > 1 for *_, accepted, _, _ in steps[1]), "a draft that is the base itself is always right"


def test_prompt_lookup_needs_a_tokenizer_alone(tiny_base):
    opened = open_prompt_lookup(tiny_base, {})
    ids = [5, 6, 7, 8] * 8
    row = Recording("a", [], prompt_ids=[1, 2, 3], token_ids=ids)
    replayed = replay([row], opened.target, opened.new_drafter, SilentReporter())
    assert summarize(replayed.steps).mean_accepted_length > 3
    assert [token.id for step in replayed.steps for token in step.tokens] == ids


def test_formats_of_recordings(tmp_path):
    lines = [
        {"prompt": "a?", "output": "b"},
        {"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}], "finish": "stop"},
        {"prompt": "a", "raw": True, "token_ids": [1, 2]},
        {"prompt_ids": [1], "token_ids": [2, 3]},
        {"prompt": "no answer"},
        {"prompt_ids": [1], "token_ids": [2, -3]},
        {"token_ids": [2]},
        {"prompt_ids": [1], "token_ids": [10**30]},
    ]
    path = tmp_path / "said.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = list(read_recordings(path))
    assert [isinstance(row, BadRow) for row in rows] == [False] * 4 + [True] * 4
    assert (rows[0].prompt, rows[0].output, rows[0].raw) == ("a?", "b", False)
    assert rows[1].finish == "stop" and rows[2].raw
    assert (rows[3].prompt_ids, rows[3].token_ids) == ([1], [2, 3])
    with pytest.raises(BadInput, match="no recording"):
        replay(rows[4:], None, None, SilentReporter())


def test_texts_become_tokens_as_the_base_sees_them(tiny_base):
    """A chat goes through the template and ends with its end token; a raw prompt is continued."""
    tokenizer = load_base(tiny_base).tokenizer
    eos = frozenset({tokenizer.eos_token_id})
    messages = [{"role": "user", "content": "a fox"}]
    answer_ids = tokenizer("the lazy dog", add_special_tokens=False)["input_ids"]
    assert ids_of(Recording("a", messages, "the lazy dog", finish="stop"), tokenizer, eos) == (
        render(tokenizer, messages),
        [*answer_ids, tokenizer.eos_token_id],
    )
    assert ids_of(Recording("a", messages, "the lazy dog"), tokenizer, eos)[1] == answer_ids
    prompt, output = ids_of(Recording("a", messages, " jumps", raw=True), tokenizer, eos)
    assert [*prompt, *output] == tokenizer("a fox jumps")["input_ids"]


def test_a_recording_of_another_tokenizer_is_left_out_with_the_reason(tiny_base):
    opened = open_small_model(tiny_base, {})
    good = Recording("good", [], prompt_ids=[1, 2], token_ids=[3, 4])
    bad = Recording("bad", [], prompt_ids=[1, 2], token_ids=[3, 10**6])
    replayed = replay([bad, good], opened.target, opened.new_drafter, SilentReporter())
    assert replayed.skipped[0][0] == "bad" and "another model family" in replayed.skipped[0][1]


def test_the_speed_is_projected_from_given_costs(tiny_base):
    """Every draft is right: 3 tokens a step of 2 + 2 · 0.5 + 1 ms, against 1 + 1 ms for one plain token."""
    opened = open_prompt_lookup(tiny_base, {"depth": 2})
    replayed = replay(
        [Recording("a", [], prompt_ids=[5, 6, 7] * 3, token_ids=[5, 6, 7] * 4)],
        opened.target,
        opened.new_drafter,
        SilentReporter(),
    )
    costs = Costs({1: {1: 1.0, 3: 2.0}}, {"chain": {1: 0.5, 2: 1.0}}, other=1.0)
    _, speed = project_times(replayed, costs)
    assert speed["projected_step_ms"] == pytest.approx(4.0)
    assert speed["projected_speedup"] == pytest.approx(3 * 2.0 / 4.0)


@pytest.fixture(scope="module")
def starter(tmp_path_factory):
    """The starter, its head, a question, and the file of its own answer."""
    if not (starter_path() / "config.json").exists():
        pytest.skip("the starter model is not installed; `make install` converts it")
    base = load_base(starter_path())
    head = load_draft(PROJECT_ROOT / "models" / "starter_head", base)
    questions = [{**row, "messages": row["messages"][:1]} for row in built_in(1)]
    recordings = tmp_path_factory.mktemp("starter") / "said.jsonl"
    record(base, 16, questions, recordings)
    return base, head, questions, recordings


@pytest.mark.real
@pytest.mark.timeout(900)
def test_the_starter_s_outputs_replay_with_the_starter_s_head(starter):
    """Replaying gives exactly the same τ as running the draft, in greedy float32."""
    options = {"depth": 3, "top_k": 4, "nodes": 8}
    base, draft, questions, recordings = starter
    target = fast_target(base, 512)
    drafter = make_drafter(target, draft, options)
    ran = []
    for row in questions:
        target.rewind(0)
        prompt = render(base.tokenizer, row["messages"])
        ran += list(generate(target, drafter, prompt, GenerateConfig(max_tokens=16)))
    opened = open_with_base(base, draft, options)
    replayed = replay(read_recordings(recordings), opened.target, opened.new_drafter, SilentReporter())
    assert facts(replayed.steps) == facts(ran)
    assert summarize(replayed.steps).mean_accepted_length == summarize(ran).mean_accepted_length > 1.2
