"""The probe: families that use our masks pass, beyond the window too; others are refused with the difference."""

import pytest
import torch

from decoding.drafters import make_drafter
from decoding.probe import NARROW_WINDOW, probe, with_sliding_window
from decoding.target import Target, usable_length
from models.base import load_base
from models.runtime.attention import layer_windows, visible_rows
from speculoos.errors import Unsupported
from tests.decoding.conftest import FAMILIES, greedy, ids_of, run, tokens_of
from tests.tiny import make_tiny_base


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_the_list_passes(family, base_of):
    assert probe(base_of(family)) < 1e-4


@pytest.mark.parametrize(("family", "dtype"), [("llama", "bfloat16"), ("gpt2", "float16")])
def test_a_base_of_half_precision_is_compared_in_full(family, dtype, tmp_path):
    """Its own rounding error would be a hundred times the limit. The probe does not replace its weights."""
    base = load_base(make_tiny_base(tmp_path, family, num_hidden_layers=4), dtype=dtype)
    before = {name: (p.data_ptr(), p.dtype) for name, p in base.model.named_parameters()}
    assert probe(base) < 1e-4
    assert {name: (p.data_ptr(), p.dtype) for name, p in base.model.named_parameters()} == before


def test_a_base_of_half_precision_that_ignores_masks_is_refused(tmp_path):
    base = load_base(make_tiny_base(tmp_path, "mpt", num_hidden_layers=2), dtype="bfloat16")
    with pytest.raises(Unsupported, match="differ from those of plain decoding by"):
        probe(base)


@pytest.mark.parametrize(
    ("family", "message"),
    [("mpt", "differ from those of plain decoding by"), ("mamba", "does not support speculative decoding")],
)
def test_families_whose_attention_ignores_our_mask_are_refused_by_name(family, message, tmp_path):
    base = load_base(make_tiny_base(tmp_path, family, num_hidden_layers=2))
    with pytest.raises(Unsupported, match=f"^M.*ForCausalLM .*{message}"):
        probe(base)


def test_a_base_that_fails_decodes_plainly_and_is_refused_drafts_before_the_run(tmp_path):
    base = load_base(make_tiny_base(tmp_path, "mpt", num_hidden_layers=2))
    target = Target(base, 64)
    prompt = ids_of(base, "the quick brown fox")
    assert tokens_of(run(target, make_drafter(target), prompt, max_tokens=12)) == greedy(base, prompt, 12)[0]
    with pytest.raises(Unsupported, match="differ from those of plain decoding by"):
        make_drafter(target, None, {"drafter": "ngram"})


def test_a_base_that_ignores_its_window_mask_is_caught(base_of, monkeypatch):
    base = base_of("mistral")
    monkeypatch.setattr(
        "models.runtime.transformers.visible_rows", lambda m, p, length, w: visible_rows(m, p, length, None)
    )
    with pytest.raises(Unsupported, match="differ from those of plain decoding by"):
        probe(base)


def test_narrowing_the_window_changes_the_models_output_and_is_undone(base_of):
    base = base_of("qwen2-mixed")
    ids = torch.arange(20)[None]
    usual = base.model(ids).logits
    with with_sliding_window(base, NARROW_WINDOW):
        assert not torch.allclose(base.model(ids).logits, usual, atol=1e-3)
    assert torch.equal(base.model(ids).logits, usual)


def test_a_window_counts_positions_along_a_branch_not_indices():
    mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    positions = torch.tensor([4, 5, 5])  # four committed rows, the root, two siblings
    assert visible_rows(mask, positions, 4, 3).int().tolist() == [
        [0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 1, 0],
        [0, 0, 0, 1, 1, 0, 1],
    ]
    assert visible_rows(mask, positions, 4, None)[2].int().tolist() == [1, 1, 1, 1, 1, 0, 1]


def test_windows_are_known_per_layer_type(base_of):
    assert layer_windows(base_of("llama").config) == {"full_attention": None}
    assert layer_windows(base_of("mistral").config) == {"sliding_attention": 16}
    assert layer_windows(base_of("qwen2-mixed").config) == {"full_attention": None, "sliding_attention": 16}


def test_rotary_scalings_that_rescale_cached_keys_are_used_up_to_their_original_length(tmp_path):
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 64,
    }
    overrides = {"rope_parameters": rope, "original_max_position_embeddings": 64, "pad_token_id": 0}
    base = load_base(make_tiny_base(tmp_path, "phi3", num_hidden_layers=2, **overrides))
    assert usable_length(base) == 64 == Target(base, 500).max_length


def test_a_long_prompt_is_prefilled_in_parts_with_the_same_result(base, monkeypatch):
    ids = [(7 * i) % base.vocab_size for i in range(150)]
    whole = Target(base, 200).prefill(ids)
    monkeypatch.setattr("decoding.target.MAX_PREFILL_TOKENS", 64)
    parts = Target(base, 200).prefill(ids, layers=(0, 1))
    torch.testing.assert_close(parts.logits[-1], whole.logits[-1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(parts.hidden, whole.hidden, atol=1e-4, rtol=1e-4)
    assert parts.features.shape == (150, 2 * base.hidden_size)
