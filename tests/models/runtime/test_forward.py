"""The fast forward equals that of transformers: prefill, trees, windows and features, in every supported family."""

import pytest
import torch
from torch import nn

from decoding.target import Target, fast_target
from decoding.tree import DraftTree, shape_from_choices
from models.base import LoadedBase, load_base
from models.runtime.forward import FastForward
from models.runtime.graphs import GraphedForward, bucket_of
from models.runtime.linear import PackedLinear, pack, pack_module, packing_works, product
from models.runtime.weights import not_fast_reason, pack_supported
from speculoos.errors import Unsupported
from tests.tiny import LLAMA3_ROPE, make_tiny_base

FAMILIES = {
    "llama": {},
    "llama-grouped-bias": {"family": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 16},
    "mistral-window": {"family": "mistral", "sliding_window": 16},
    "qwen2": {},
    "qwen2-window": {"family": "qwen2", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
    "qwen3": {"head_dim": 16},
    "phi": {"num_key_value_heads": 4, "partial_rotary_factor": 0.5},
    "phi3": {"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1},
    "llama3-rope": {"family": "llama", "rope_parameters": LLAMA3_ROPE},
}


def pair_of_bases(folder, name: str) -> tuple[LoadedBase, LoadedBase]:
    """The same random base twice (a fast forward takes over the weights), with random biases and norms."""
    options = dict(FAMILIES[name])
    make_tiny_base(folder, options.pop("family", name), **options)
    bases = load_base(folder), load_base(folder)
    for base in bases:
        generator = torch.Generator().manual_seed(1)
        for parameter in base.model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return bases


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_hidden_states_and_features_equal_those_of_transformers(tmp_path, name):
    slow_base, fast_base = pair_of_bases(tmp_path, name)
    slow, fast = Target(slow_base, 256), fast_target(fast_base, 256)
    assert fast.forward.name == "fast" and fast.notice == ""
    prompt = torch.randint(3, 300, (40,), generator=torch.Generator().manual_seed(2)).tolist()
    shape = shape_from_choices([[0, 0, 0], [0, 1], [1, 0], [1, 1]])
    tree = DraftTree(tuple(range(20, 20 + len(shape))), shape)
    layers = (0, 2)
    near(slow.prefill(prompt, layers=layers), fast.prefill(prompt, layers=layers))
    for path in ((0,), (0, 1, 3), (0, 2, 6)):
        near(slow.forward_tree(tree, layers), fast.forward_tree(tree, layers))
        slow.commit(tree, path)
        fast.commit(tree, path)
    one = DraftTree((7,))
    near(slow.forward_tree(one), fast.forward_tree(one))


@pytest.mark.parametrize("name", ["llama", "mistral-window", "qwen2-window", "phi"])
def test_what_a_graph_replays_equals_the_forward_on_the_rows_in_use(tmp_path, name):
    """Without a GPU the same computation runs on the same buffers, but is not captured."""
    slow_base, fast_base = pair_of_bases(tmp_path, name)
    slow, fast = Target(slow_base, 700), fast_target(fast_base, 700)
    fast.forward.graphs = GraphedForward(fast.forward)
    prompt = torch.randint(3, 300, (245,), generator=torch.Generator().manual_seed(2)).tolist()
    shape = shape_from_choices([[0, 0, 0], [0, 1], [1, 0], [1, 1]])
    fast.cache.reserve(fast.forward.heads.num_kv_heads, fast.forward.heads.dim, torch.float32, fast_base.device, 1)
    fast.cache.keys.zero_(), fast.cache.values.zero_()  # as on CUDA: masked rows are multiplied by zero
    near(slow.prefill(prompt, layers=(0, 2)), fast.prefill(prompt, layers=(0, 2)))
    for step in range(3):  # the third tree goes beyond the first bucket
        tree = DraftTree(tuple(range(20 + step, 20 + step + len(shape))), shape)
        near(slow.forward_tree(tree, (0, 2)), fast.forward_tree(tree, (0, 2)))
        slow.commit(tree, (0, 2, 6))
        fast.commit(tree, (0, 2, 6))
    one = DraftTree((7,))
    near(slow.forward_tree(one), fast.forward_tree(one))
    assert {key[:2] for key in fast.cache.replays} == {(len(shape), 256), (len(shape), 512), (1, 256)}


def test_a_graph_keeps_the_rotations_it_was_made_with(tiny_base):
    """A target with a longer context gives the forward a longer table; graphs of the first still read the old one."""
    base = load_base(tiny_base)
    short, long = fast_target(base, 200), fast_target(base, 512)
    short.forward.graphs = GraphedForward(short.forward)
    for target in (short, long):
        target.prefill([5, 6, 7])
        target.forward_tree(DraftTree((8,)))
    tables = [next(iter(target.cache.replays.values())).keep for target in (short, long)]
    assert [len(table) for table in tables] == [256, 512]
    assert torch.equal(tables[0], tables[1][:256])


def test_buckets_are_powers_of_two_up_to_the_capacity():
    assert [bucket_of(rows, 2000) for rows in (1, 256, 257, 1025, 1999)] == [256, 256, 512, 2000, 2000]


def near(slow, fast) -> None:
    assert torch.allclose(slow.logits, fast.logits, atol=2e-4), (slow.logits - fast.logits).abs().max()
    assert torch.allclose(slow.hidden, fast.hidden, atol=2e-4)
    assert (slow.features is None) == (fast.features is None)
    if slow.features is not None:
        assert torch.allclose(slow.features, fast.features, atol=2e-4)


def test_weights_are_held_once_and_shared_by_targets_of_one_base(tiny_base):
    base = load_base(tiny_base)
    first, second = fast_target(base), fast_target(base)
    assert first.forward is second.forward and first.cache is not second.cache
    linears = [m for m in base.layers.modules() if isinstance(m, nn.Linear)]
    assert linears == [], "the originals are dropped once packed"
    assert base.vocab_size == base.embed_tokens.weight.shape[0], "the head still tells its shape"


def test_a_family_without_a_fast_forward_falls_back_and_says_so(tmp_path):
    make_tiny_base(tmp_path, "gpt_neox", rotary_pct=0.5)
    base = load_base(tmp_path)
    target = fast_target(base)
    assert target.forward.name == "transformers"
    assert "gpt_neox" in target.notice
    with pytest.raises(Unsupported, match="gpt_neox"):
        FastForward(base)


def test_rotary_types_that_change_with_length_are_left_to_transformers(tmp_path):
    make_tiny_base(tmp_path, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0})
    assert "dynamic" in not_fast_reason(load_base(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 65])
def test_packed_linear_equals_the_linear_it_replaces(dtype, rows):
    torch.manual_seed(0)
    linear = nn.Linear(96, 160).to(dtype).requires_grad_(False)
    packed = pack(linear.weight, linear.bias)
    assert isinstance(packed, PackedLinear) == packing_works(dtype)
    x = torch.randn(rows, 96).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 5e-2
    assert torch.allclose(packed(x), linear(x), atol=tolerance)
    residual = torch.randn(rows, 160).to(dtype)
    assert torch.allclose(packed.add(x, residual), residual + linear(x), atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_takes_weights_of_any_memory_layout(dtype):
    torch.manual_seed(0)
    x, weight = torch.randn(7, 24).to(dtype), torch.randn(40, 24).to(dtype)
    for one in (weight, weight.T.contiguous().T, weight[::2]):
        assert torch.allclose(
            product(x, one).float(), x.float() @ one.float().T, atol=1e-5 if dtype == torch.float32 else 0.2
        )
    assert product(x[:0], weight).shape == (0, 40)


def test_a_packed_base_keeps_its_head_where_drafts_borrow_it(tiny_base):
    base, packed = load_base(tiny_base), load_base(tiny_base)
    pack_supported(packed, head=False)
    assert torch.equal(packed.lm_head.weight, base.lm_head.weight)
    assert not any(isinstance(part, nn.Linear) for part in packed.layers.modules()) or not packing_works(torch.float32)
    ids = torch.arange(5, 45).view(2, 20)
    for one, other in zip(
        base.forward_hidden(ids, layers=(0, 2)), packed.forward_hidden(ids, layers=(0, 2)), strict=True
    ):
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(one, other, strict=True))


def test_packing_a_module_keeps_its_output_and_packs_a_shared_weight_once():
    torch.manual_seed(0)
    first = nn.Linear(16, 16)
    module = nn.Sequential(first, nn.SiLU(), nn.Sequential(first)).requires_grad_(False)
    x = torch.randn(2, 16)
    expected = module(x)
    pack_module(module)
    assert torch.allclose(module(x), expected, atol=1e-5)
    assert module[0] is module[2][0]
