"""The head that comes with the starter model is complete and small, belongs to its weights and drafts well."""

import json

import pytest

from decoding.drafters import make_drafter
from decoding.generate import GenerateConfig, generate
from decoding.stats import summarize
from decoding.target import fast_target
from models.base import load_base
from models.chat import render
from models.checkpoints import load_draft, read_config, verify_sums
from models.fetch import read_card
from models.starter import STARTER_HEAD, STARTER_HUB_ID, starter_path

PROMPTS = ("Write a short email to a friend about a trip to the mountains.", "What is photosynthesis? Explain briefly.")


def test_it_is_complete_small_and_names_its_base():
    verify_sums(STARTER_HEAD)
    config, card = read_config(STARTER_HEAD), (STARTER_HEAD / "README.md").read_text()
    assert (STARTER_HEAD / "model.safetensors").stat().st_size <= 20_000_000
    assert config["speculoos_method"] == "eagle3" and config["drafting"]
    assert config["base_sha256"] == read_card(starter_path())["weights_sha256"]
    assert config["base_sha256"] in card and "python -m benchmarks.starter_head" in card
    assert STARTER_HUB_ID in card, "what the starter is outside of the workbench"
    assert f"| mean_accepted_length | {config['training']['figures']['mean_accepted_length']:.4g} |" in card


@pytest.mark.real
def test_drafting_with_it_gives_the_starters_own_tokens():
    base = load_base(starter_path())
    draft = load_draft(STARTER_HEAD, base, read_card(starter_path())["weights_sha256"])
    assert draft.notices == []
    target, steps, outputs = fast_target(base, 256), [], {}
    for options, tokens in ((None, 48), ({"drafter": "none"}, 24)):
        drafter = make_drafter(target, draft, options)
        runs = [list(generate(target, drafter, ids(base, p), GenerateConfig(max_tokens=tokens))) for p in PROMPTS]
        outputs[json.dumps(options)] = [[t.id for step in run for t in step.tokens][:24] for run in runs]
        steps = steps or [step for run in runs for step in run]
    assert outputs["null"] == outputs['{"drafter": "none"}']
    assert summarize(steps).mean_accepted_length > 1.6


def ids(base, prompt):
    return render(base.tokenizer, [{"role": "user", "content": prompt}])
