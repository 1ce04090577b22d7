"""A base loaded without its layers: what drafts use of it equals the whole base bit for bit."""

from pathlib import Path

import pytest
import torch

from models.base import aux_layers, load_base
from models.draft_layers import base_layer_config
from models.frame import load_head_only_base
from speculoos.errors import Damaged, NotFound, Unsupported
from tests.tiny import FAMILIES, make_tiny_base


@pytest.mark.parametrize("family", FAMILIES)
def test_a_frame_is_its_base_without_layers(family: str, tmp_path: Path) -> None:
    kind, overrides = FAMILIES[family]
    folder = make_tiny_base(tmp_path / family, kind, **overrides)
    base, frame = load_base(folder), load_head_only_base(folder)
    assert (frame.num_layers, frame.hidden_size, frame.vocab_size) == (4, 32, base.vocab_size)
    assert frame.max_length == base.max_length and frame.eos_ids == base.eos_ids
    assert aux_layers(frame.num_layers) == aux_layers(base.num_layers)
    assert base_layer_config(frame) == base_layer_config(base)
    assert torch.equal(frame.embed_tokens.weight, base.embed_tokens.weight)
    assert torch.equal(frame.lm_head.weight, base.lm_head.weight)
    ids = torch.tensor([[3, 9, 27, 81]])
    states: dict[str, torch.Tensor] = {}
    hook = base.final_norm.register_forward_hook(lambda _, inputs, out: states.update(given=inputs[0], out=out))
    with torch.no_grad():
        hidden, _ = base.forward_hidden(ids)
        hook.remove()
        assert torch.equal(frame.final_norm(states["given"]), states["out"])
        assert torch.equal(frame.logits(hidden), base.logits(hidden))
        assert torch.equal(frame.embed_tokens(ids), base.embed_tokens(ids))
    ours = sum(p.numel() for p in frame.model.parameters())
    assert ours < sum(p.numel() for p in base.model.parameters()) and len(frame.layers) == 0
    assert frame.tokenizer.get_vocab() == base.tokenizer.get_vocab()


def test_it_cannot_run_by_itself(tiny_base: Path) -> None:
    with pytest.raises(Unsupported, match="the layers of this base are not loaded"):
        load_head_only_base(tiny_base).forward_hidden(torch.tensor([[1, 2]]))


def test_errors_of_a_folder_are_those_of_a_base(tmp_path: Path, tiny_base: Path) -> None:
    from models.damage import BaseChecksums

    with pytest.raises(NotFound, match="no config.json"):
        load_head_only_base(tmp_path)
    with pytest.raises(Damaged):
        load_head_only_base(tiny_base, known=BaseChecksums("00" * 32))
