"""A base loaded without its layers: what drafts use of it equals the whole base bit for bit."""

from pathlib import Path

import pytest
import torch

from models.base import aux_layers, load_base
from models.draft_layers import base_layer_config
from models.head_only import load_head_only_base
from speculoos.errors import Damaged, NotFound, Unsupported
from tests.tiny import FAMILIES, make_tiny_base


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_only_base_is_its_base_without_layers(family: str, tmp_path: Path) -> None:
    kind, overrides = FAMILIES[family]
    folder = make_tiny_base(tmp_path / family, kind, **overrides)
    base, head_only = load_base(folder), load_head_only_base(folder)
    assert (head_only.num_layers, head_only.hidden_size, head_only.vocab_size) == (4, 32, base.vocab_size)
    assert head_only.max_length == base.max_length and head_only.eos_ids == base.eos_ids
    assert aux_layers(head_only.num_layers) == aux_layers(base.num_layers)
    assert base_layer_config(head_only) == base_layer_config(base)
    assert torch.equal(head_only.embed_tokens.weight, base.embed_tokens.weight)
    assert torch.equal(head_only.lm_head.weight, base.lm_head.weight)
    ids = torch.tensor([[3, 9, 27, 81]])
    states: dict[str, torch.Tensor] = {}
    hook = base.final_norm.register_forward_hook(lambda _, inputs, out: states.update(input=inputs[0], out=out))
    with torch.no_grad():
        hidden, _ = base.forward_hidden(ids)
        hook.remove()
        assert torch.equal(head_only.final_norm(states["input"]), states["out"])
        assert torch.equal(head_only.logits(hidden), base.logits(hidden))
        assert torch.equal(head_only.embed_tokens(ids), base.embed_tokens(ids))
    ours = sum(p.numel() for p in head_only.model.parameters())
    assert ours < sum(p.numel() for p in base.model.parameters()) and len(head_only.layers) == 0
    assert head_only.tokenizer.get_vocab() == base.tokenizer.get_vocab()


def test_it_cannot_run_by_itself(tiny_base: Path) -> None:
    with pytest.raises(Unsupported, match="the layers of this base are not loaded"):
        load_head_only_base(tiny_base).forward_hidden(torch.tensor([[1, 2]]))


def test_errors_of_a_folder_are_those_of_a_base(tmp_path: Path, tiny_base: Path) -> None:
    from models.damage import BaseChecksums

    with pytest.raises(NotFound, match="no config.json"):
        load_head_only_base(tmp_path)
    with pytest.raises(Damaged):
        load_head_only_base(tiny_base, known=BaseChecksums("00" * 32))
