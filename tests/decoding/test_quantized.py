"""Drafting for quantized bases gives their own plain greedy output, with every drafter."""

import pytest
from transformers import AutoModelForCausalLM, TorchAoConfig

from decoding.drafters import make_drafter
from decoding.target import fast_target
from models.base import load_base
from models.methods import METHODS
from models.quantize import quantize_folder
from models.standalone import StandaloneDraft
from speculoos.reporting import SilentReporter
from tests.decoding.conftest import PROMPTS, greedy, ids_of, run, tokens_of
from tests.decoding.test_exactness import DRAFTERS, ON_FAST, draft_for
from tests.tiny import tiny_tokenizer


def quantize_here(source, folder):
    quantize_folder(source, folder, "w4a16", "float32", SilentReporter())


def quantize_with_transformers(source, folder):
    torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed; it slows every import down")
    config = TorchAoConfig(torchao.Int8WeightOnlyConfig(version=2))
    AutoModelForCausalLM.from_pretrained(source, quantization_config=config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


@pytest.mark.parametrize(("make", "forward"), [(quantize_here, "fast"), (quantize_with_transformers, "transformers")])
def test_every_drafter_gives_the_quantized_base_its_own_output(make, forward, base_of, tmp_path):
    plain = base_of("llama")
    make(plain.path, tmp_path)
    base, prompt = load_base(tmp_path), ids_of(plain, PROMPTS[0])
    expected, gap = greedy(base, prompt, 24)
    assert gap > 1e-4 and expected != greedy(plain, prompt, 24)[0], "another base has another output"
    layers = StandaloneDraft.from_base(base, 1).as_base(base)
    drafts = {method: draft_for(method, base, layers) for method in ("none", *METHODS)}
    target = fast_target(base, 160)
    assert target.forward.name == forward
    for name in ON_FAST:
        method, options = DRAFTERS[name]
        drafter = make_drafter(target, drafts[method], options)
        assert tokens_of(run(target, drafter, prompt, max_tokens=24)) == expected, name
