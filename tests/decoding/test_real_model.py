"""The real starter model: exactness on 2 prompts × 64 tokens, and the notebook."""

import json
from pathlib import Path

import pytest

from benchmarks.exactness import compare, reference, verdict
from decoding.drafters import make_drafter
from decoding.target import Target, fast_target
from decoding.tree import shape_from_choices
from models.base import load_base
from models.chat import render
from models.starter import starter_path
from tests.decoding.replay import ReplayDrafter

QUESTIONS = (
    "Write a short letter to a neighbour about a lost cat.",
    "Repeat this list twice: red, green, blue, yellow.",
)
COUNT = 64
SHAPE = shape_from_choices([[0, 0, 0], [0, 1], [1, 0]])
NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "library.ipynb"

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def starter():
    """The starter base. The first test runs transformers' forward; then the fast one takes its weights over."""
    if not (starter_path() / "config.json").exists():
        pytest.skip("the starter model is not installed; `make install` converts it")
    return load_base(starter_path())


def test_the_starter_gives_the_same_tokens_with_and_without_drafts(starter):
    prompts = [render(starter.tokenizer, [{"role": "user", "content": text}]) for text in QUESTIONS]
    expected = [reference(starter, prompt, COUNT) for prompt in prompts]
    for make in (Target, fast_target):
        target, outcomes = make(starter, 256), []
        for answer in expected:
            outcomes.append(compare(target, ReplayDrafter(answer.tokens, SHAPE, starter.vocab_size), answer))
            if make is fast_target:
                outcomes.append(compare(target, make_drafter(target, None, {"drafter": "ngram"}), answer))
        result = verdict(outcomes)
        assert result["exact"], (target.forward.name, result)
        assert sum(o.tokens for o in outcomes) >= 2 * 40


def test_the_notebook_runs_and_shows_what_it_prints(starter, capsys):
    names: dict[str, object] = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)
        printed = "".join("".join(out.get("text", [])) for out in cell["outputs"])
        assert capsys.readouterr().out == printed
    assert names["summary"].mean_accepted_length > 1.2
