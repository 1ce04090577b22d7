"""A padded batch computed without its padding has the same hidden states at every real position, in each family."""

import pytest
import torch

from models import varlen
from models.base import load_base
from tests.tiny import make_tiny_base

LENGTHS = torch.tensor([5, 17, 1, 12])


@pytest.fixture(scope="module", params=varlen.FAMILIES)
def family(request, tmp_path_factory):
    return load_base(make_tiny_base(tmp_path_factory.mktemp(request.param), request.param))


def batch(base):
    torch.manual_seed(0)
    ids = torch.randint(3, base.vocab_size, (4, 17))
    real = torch.arange(17) < LENGTHS[:, None]
    return ids.masked_fill(~real, 0), real


@torch.no_grad()
def test_hidden_states_at_real_positions_equal_those_with_padding(family):
    ids, real = batch(family)
    layers = (0, family.num_layers - 1)
    padded, padded_layers = family.forward_hidden(ids, layers=layers)
    unpadded, unpadded_layers = family.forward_hidden(ids, layers=layers, lengths=LENGTHS)
    for expected, actual in zip((padded, *padded_layers), (unpadded, *unpadded_layers), strict=True):
        assert torch.allclose(actual[real], expected[real], atol=1e-5)
        assert not actual[~real].any()
    assert family.config._attn_implementation != varlen.ATTENTION_NAME, "left as it was found"
    again, _ = family.forward_hidden(ids)
    assert torch.equal(again, padded)


@torch.no_grad()
def test_nothing_is_computed_for_padding(tiny_base):
    family = load_base(tiny_base)
    ids, _ = batch(family)
    seen = []
    family.embed_tokens.register_forward_hook(lambda _module, args, _out: seen.append(args[0].numel()))
    family.forward_hidden(ids, lengths=LENGTHS)
    assert seen == [int(LENGTHS.sum())]


def test_rows_beyond_a_window_and_other_families_keep_their_padding(tmp_path):
    cpu = torch.device("cpu")
    mistral = load_base(make_tiny_base(tmp_path / "mistral", "mistral", sliding_window=8)).config
    assert varlen.can_run(mistral, cpu, torch.tensor([3, 8])) and not varlen.can_run(mistral, cpu, torch.tensor([9]))
    other = load_base(make_tiny_base(tmp_path / "gpt_neox", "gpt_neox")).config
    assert not varlen.can_run(other, cpu, LENGTHS)
    assert not varlen.can_run(mistral, torch.device("cuda"), torch.tensor([4])), "one large launch is better there"
