"""Draft networks and their checkpoints: loading restores the draft exactly, and heads follow the base's logits."""

import json
import shutil
from functools import cache

import pytest
import torch

from models.base import load_base
from models.block_attention import BlockBackend
from models.checkpoints import (
    load_draft,
    load_draft_for_training,
    read_config,
    save_draft,
    update_draft_config,
    verify_sums,
)
from models.dflash import DFlashDraft
from models.eagle import EagleDraft
from models.eagle3 import Eagle3Draft
from models.medusa import MedusaConfig, MedusaHeads
from models.methods import train_config
from models.methods.standalone import StandaloneSizes, standalone_sizes
from models.standalone import StandaloneDraft, base_sizes, evenly_spaced_layers
from speculoos.checksums import ChecksumCache, file_sha256
from speculoos.errors import BadInput, Damaged, NotFound, Unsupported
from tests.tiny import FAMILIES, make_tiny_base
from tests.tools.damage import flip

SPECIAL_HEADS = ("phi", "granite", "gemma2", "cohere")
"""Families whose logits are not the plain product with the head."""


@pytest.fixture(scope="module")
def base(tiny_base):
    return load_base(tiny_base)


@pytest.fixture(scope="module")
def base_of(tmp_path_factory):
    """base_of(family): a loaded tiny base, created once."""

    @cache
    def get(family):
        kind, overrides = FAMILIES[family]
        return load_base(make_tiny_base(tmp_path_factory.mktemp(family), kind, **overrides))

    return get


def make(method, base):
    torch.manual_seed(3)
    if method == "medusa":
        heads = MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 3, 2), base)
        for p in heads.parameters():
            torch.nn.init.normal_(p, 0, 0.1)
        return heads
    if method == "medusa-tied":
        return MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 2, 1, True), base)
    if method == "medusa-small":
        config = MedusaConfig(base.hidden_size, base.vocab_size, 2, 1, True, draft_vocab_size=40)
        return MedusaHeads.from_base(config, base, torch.arange(0, 80, 2))
    if method == "eagle":
        return EagleDraft.from_base(base, eagle_num_layers=2, use_last_layernorm=True)
    if method == "eagle3":
        return Eagle3Draft.from_base(base, torch.arange(5, 105))
    if method.startswith("dflash"):
        return DFlashDraft.from_base(base, torch.arange(5, 105) if method == "dflash-small" else None)
    return StandaloneDraft.from_base(base, 2)


def outputs(draft, base):
    """Outputs that depend on every part of the draft."""
    ids = torch.arange(12)[None] + 7
    hidden, aux = base.forward_hidden(ids, layers=getattr(draft, "layers_wanted", ()))
    if draft.method == "medusa":
        return draft(hidden)
    if draft.method == "draft":
        return draft(ids).logits
    if draft.method == "dflash":
        context, positions = draft.fuse(torch.cat(aux, -1)), torch.arange(12 + draft.block_size)[None]
        backend = BlockBackend(torch.zeros(1, dtype=torch.long), torch.tensor([12]), 1)
        return draft.logits(
            draft(draft.block_ids(ids[0, :1]), positions[:, 12:], backend, (context, positions[:, :12]))
        )
    return draft.logits(draft(draft.fuse(hidden, aux), ids, torch.arange(12)[None]))


@pytest.mark.parametrize(
    ("family", "method"),
    [
        *(("llama", method) for method in ("medusa", "medusa-tied", "medusa-small", "eagle", "eagle3", "draft")),
        *(("granite", method) for method in ("medusa", "eagle", "eagle3", "dflash")),
        *(("llama", method) for method in ("dflash", "dflash-small")),
    ],
)
@torch.no_grad()
def test_a_saved_draft_computes_the_same_when_loaded(family, method, base_of, tmp_path):
    base = base_of(family)
    draft = make(method, base)
    folder = save_draft(tmp_path / "draft", draft, {"base": "tiny", "base_sha256": "a" * 64})
    loaded = load_draft(folder, base, "a" * 64)
    assert torch.equal(outputs(loaded, base), outputs(draft, base))
    assert loaded.notices == []
    verify_sums(folder)
    assert {p.name for p in folder.iterdir()} >= {"model.safetensors", "config.json", "README.md", "SHA256SUMS"}
    assert [p.name for p in tmp_path.iterdir()] == ["draft"]


def test_saving_again_replaces_the_folder_and_bf16_halves_it(base, tmp_path):
    draft = make("medusa", base)
    save_draft(tmp_path / "d", draft, {})
    size = (tmp_path / "d" / "model.safetensors").stat().st_size
    save_draft(tmp_path / "d", draft, {}, dtype="bfloat16")
    assert (tmp_path / "d" / "model.safetensors").stat().st_size < 0.6 * size
    assert read_config(tmp_path / "d")["dtype"] == "bfloat16"
    assert load_draft(tmp_path / "d", base).lm_heads[0].weight.dtype == torch.float32


def test_another_base_warns_and_another_vocabulary_is_refused(base, tmp_path):
    folder = save_draft(tmp_path / "d", make("eagle", base), {"base_sha256": "a" * 64})
    assert "trained on a base" in load_draft(folder, base, "b" * 64).notices[0]
    update_draft_config(folder, vocab_size=9)
    with pytest.raises(Unsupported, match="vocab_size 9"):
        load_draft(folder, base)


def test_a_damaged_or_foreign_folder_is_refused_in_one_sentence(base, tmp_path):
    with pytest.raises(NotFound, match="config.json"):
        load_draft(tmp_path, base)
    folder = save_draft(tmp_path / "d", make("medusa", base), {})
    sums = (folder / "SHA256SUMS").read_text()
    (folder / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(Damaged, match="SHA256SUMS"):
        load_draft(folder, base)
    (folder / "SHA256SUMS").unlink()  # as in a folder from elsewhere
    with pytest.raises(BadInput, match="safetensors"):
        load_draft(folder, base)
    other = save_draft(tmp_path / "e", make("eagle", base), {})
    shutil.copy(other / "model.safetensors", folder)
    with pytest.raises(Unsupported, match="first wrong tensor"):
        load_draft(folder, base)
    (folder / "SHA256SUMS").write_text(sums.replace("  model", "  ../model"))
    with pytest.raises(Damaged, match="line 3: expected a sha256"):
        load_draft(folder, base)


def test_512_flipped_bytes_of_a_draft_are_told_instead_of_loaded(base, tmp_path):
    folder = save_draft(tmp_path / "d", make("medusa", base), {})
    weights, checksum_cache = folder / "model.safetensors", ChecksumCache(tmp_path / "sums.json")
    sha256 = file_sha256(weights)
    assert load_draft(folder, base, sha256=sha256, checksum_cache=checksum_cache)
    flip(weights)
    for optional_cache in (checksum_cache, ChecksumCache(tmp_path / "sums.json"), None):
        with pytest.raises(Damaged, match="model.safetensors is damaged"):
            load_draft(folder, base, checksum_cache=optional_cache)
    with pytest.raises(Damaged):
        load_draft_for_training(folder, base, "medusa")
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(Damaged, match="not the file that was trained"):
        load_draft(folder, base, sha256=sha256, checksum_cache=checksum_cache)


def test_the_draft_vocabulary_maps_to_the_base_and_back(base):
    draft = Eagle3Draft.from_base(base, torch.tensor([2, 3, 50, 311]))
    assert draft.to_target(torch.arange(4)).tolist() == [2, 3, 50, 311] == draft.draft_ids.tolist()
    assert draft.t2d.nonzero()[:, 0].tolist() == [2, 3, 50, 311]
    assert torch.equal(draft.lm_head.weight, base.lm_head.weight[[2, 3, 50, 311]])


@torch.no_grad()
def test_scaled_features_are_folded_into_the_stored_weights(base, tmp_path):
    rms = torch.linspace(0.1, 300.0, 3 * base.hidden_size)
    draft = Eagle3Draft.from_base(base, feature_rms=rms)
    loaded = load_draft(save_draft(tmp_path / "draft", draft, {}), base)
    assert type(loaded.fc) is torch.nn.Linear
    assert torch.allclose(outputs(loaded, base), outputs(draft, base), rtol=1e-4, atol=1e-4)
    state, before = draft.state_dict(), draft.fc.weight.clone()
    draft.fc.weight.zero_()
    draft.load_state_dict(state)
    assert torch.equal(draft.fc.weight, before)  # powers of two: nothing is lost on the way


def test_medusa_heads_over_a_draft_vocabulary_are_columns_of_the_whole(base):
    hidden, ids = torch.randn(4, base.hidden_size), torch.arange(0, 80, 2)
    small = make("medusa-small", base)
    assert torch.allclose(small(hidden), make("medusa-tied", base)(hidden)[..., ids], atol=1e-5)
    assert small.to_target(torch.arange(40)).tolist() == ids.tolist()
    assert not any(p.requires_grad for p in small.lm_heads.parameters())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", *SPECIAL_HEADS])
@torch.no_grad()
def test_fresh_medusa_heads_repeat_the_base(family, tied, base_of):
    base, ids = base_of(family), torch.arange(40, 52)[None]
    heads = MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 2, 3, tied), base)
    hidden, _ = base.forward_hidden(ids)
    expected = base.model(ids).logits
    for logits in (heads(hidden), torch.stack([heads.forward_head(i, hidden) for i in range(2)])):
        assert torch.allclose(logits, expected.expand(2, -1, -1, -1), atol=1e-5)
    assert len({id(p) for p in heads.blocks.parameters()}) == 2 * 3 * 2  # no layer shared


@pytest.mark.parametrize("family", SPECIAL_HEADS)
@torch.no_grad()
def test_eagle_drafts_turn_features_into_the_bases_logits(family, base_of):
    """EAGLE-1 uses the base's head; the head of EAGLE-3 contains the base's bias and scale, but not its cap."""
    base, ids = base_of(family), torch.arange(40, 52)[None]
    hidden, _ = base.forward_hidden(ids)
    expected, draft_ids = base.model(ids).logits, torch.arange(0, base.vocab_size, 3)
    assert torch.allclose(EagleDraft.from_base(base).logits(hidden), expected, atol=1e-5)
    logits = Eagle3Draft.from_base(base, draft_ids).lm_head(hidden)
    if cap := base.logit_rule.cap:
        logits = cap * torch.tanh(logits / cap)
    assert torch.allclose(logits, expected[..., draft_ids], atol=1e-5)


@torch.no_grad()
def test_eagle_logits_in_another_precision_than_the_bases(base_of, tmp_path):
    """While training, the draft is in fp32 and the base may be in bf16."""
    kind, overrides = FAMILIES["granite"]
    base = load_base(make_tiny_base(tmp_path, kind, **overrides), "bfloat16")
    draft, features = EagleDraft.from_base(base).float(), torch.randn(3, base.hidden_size)
    expected = features @ base.lm_head.weight.float().T / base.config.logits_scaling
    assert torch.allclose(draft.logits(features), expected, atol=1e-5)


@torch.no_grad()
def test_a_checkpoint_from_before_biases_loads(base, tmp_path):
    for method in ("medusa", "eagle3"):
        draft = make(method, base)
        folder = save_draft(tmp_path / method, draft, {})
        config = read_config(folder)
        assert config.pop("lm_head_bias") is False
        (folder / "SHA256SUMS").unlink()
        (folder / "config.json").write_text(json.dumps(config))
        assert torch.equal(outputs(load_draft(folder, base), base), outputs(draft, base))


@torch.no_grad()
def test_drafting_and_tuning_of_a_checkpoint_are_not_settings_of_its_model(base, tmp_path):
    save_draft(tmp_path / "d", StandaloneDraft.from_base(base, 1), {})
    update_draft_config(tmp_path / "d", drafting={"depth": 2}, tuning={"verdict": "fast"})
    draft = load_draft(tmp_path / "d", base)
    assert draft.drafting == {"depth": 2} and not {"drafting", "tuning"} & set(draft.to_json())


def test_a_standalone_draft_with_every_layer_is_the_base(base, tmp_path):
    from transformers import AutoModelForCausalLM

    ids = torch.arange(10)[None]
    assert torch.equal(StandaloneDraft.from_base(base, base.num_layers)(ids).logits, base.model(ids).logits)
    draft = StandaloneDraft.from_base(base, 2)
    folder = save_draft(tmp_path / "small", draft, {})
    small = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(small(ids).logits, draft(ids).logits)
    assert evenly_spaced_layers(30, 4) == [0, 10, 19, 29]
    with pytest.raises(BadInput, match="draft_num_layers"):
        StandaloneDraft.from_base(base, 99)


@torch.no_grad()
def test_pruning_by_width_keeps_what_matters(tmp_path):
    """Half of the MLP's neurons and of the heads write nothing; pruning them leaves the logits unchanged."""
    base = load_base(make_tiny_base(tmp_path / "base"))
    whole, ids = base_sizes(base), torch.arange(10)[None]
    for layer in base.layers:
        layer.mlp.down_proj.weight[:, ::2] = 0
        layer.self_attn.o_proj.weight[:, :16] = 0  # the first key-value head with its two query heads
    config = train_config("draft", draft_intermediate_size=32, draft_num_heads=2, draft_num_kv_heads=1)
    sizes = standalone_sizes(config, whole)
    draft = StandaloneDraft.from_base(base, 4, sizes)
    assert (
        sizes == StandaloneSizes(4, 32, 32, 2, 1) and draft.model.num_parameters() < 0.7 * base.model.num_parameters()
    )
    torch.testing.assert_close(draft(ids).logits, base.model(ids).logits)
    with pytest.raises(Unsupported, match="family phi cannot be pruned by width"):
        StandaloneDraft.from_base(load_base(make_tiny_base(tmp_path / "phi", "phi")), 4, sizes)


@torch.no_grad()
@pytest.mark.parametrize("random", [False, True])
def test_a_narrow_draft_is_an_ordinary_model(base, tmp_path, random):
    from transformers import AutoModelForCausalLM

    sizes = standalone_sizes(train_config("draft", draft_num_layers=2, draft_hidden_size=16), base_sizes(base))
    assert sizes == StandaloneSizes(2, 16, 32, 2, 1), "all in proportion"
    draft, ids = StandaloneDraft.from_base(base, 2, sizes, random), torch.arange(10)[None]
    copied = [
        any(torch.equal(base.lm_head.weight[:, i], row) for i in range(32)) for row in draft.model.lm_head.weight.T
    ]
    assert all(copied) is not random and any(copied) is not random
    folder = save_draft(tmp_path / "narrow", draft, {})
    small = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert small.config.hidden_size == 16 and torch.equal(small(ids).logits, draft(ids).logits)
    assert torch.equal(load_draft(folder, base)(ids).logits, draft(ids).logits)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"draft_hidden_size": 48}, "draft_hidden_size: pruning this base gives at most 32, got 48"),
        (
            {"draft_hidden_size": 30, "draft_num_heads": 4},
            "draft_hidden_size: 30 is not a multiple of the 4 attention heads",
        ),
        ({"draft_hidden_size": 17}, "draft_hidden_size: 17 is not a multiple of the 2 attention heads"),
        ({"draft_intermediate_size": 65}, "draft_intermediate_size: pruning this base gives at most 64"),
        ({"draft_num_heads": 4, "draft_num_kv_heads": 3}, "draft_num_heads: 4 heads cannot share 3 key-value heads"),
        ({"draft_num_heads": 4, "draft_num_kv_heads": 1}, "draft_num_heads: pruning this base gives at most 2, got 4"),
        ({"draft_num_layers": 5}, "draft_num_layers: expected 1 to 4 for this base, got 5"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(BadInput, match=message):
        standalone_sizes(train_config("draft", **settings), StandaloneSizes(4, 32, 64, 4, 2))


def test_random_weights_may_be_wider_than_the_base():
    wide = train_config("draft", draft_hidden_size=64, draft_init="random")
    assert standalone_sizes(wide, StandaloneSizes(4, 32, 64, 4, 2)) == StandaloneSizes(4, 64, 128, 8, 4)
