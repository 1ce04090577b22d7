"""docs/library.md: a loaded model becomes a draft in training under Hugging Face's Trainer, and is restored."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from decoding.target import fast_target
from models.base import load_base
from runtime.linear import packing_works
from runtime.weights import pack_known
from speculoos.errors import BadInput, Unsupported
from training.convert import collate_rows, conversations_from, convert

LIBRARY = Path(__file__).resolve().parents[2] / "docs" / "library.md"


def test_the_training_example_runs_and_restores_what_was_trained(tiny_base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", LIBRARY.read_text(encoding="utf-8"), flags=re.DOTALL)
    names = {"BASE": tiny_base}
    exec(compile(next(b for b in blocks if "TrainingArguments" in b), "library.md", "exec"), names)
    trained, restored = names["heads"].draft.state_dict(), names["restored"].state_dict()
    assert trained.keys() == restored.keys() and all(torch.equal(trained[k].cpu(), restored[k]) for k in trained)
    fresh = convert(names["base"], "medusa", medusa_num_heads=2, medusa_tie_lm_head=True).draft.state_dict()
    assert any(not torch.equal(trained[k].cpu(), fresh[k]) for k in trained)
    assert (tmp_path / "my-heads" / "README.md").exists()


def test_a_batch_on_another_device_than_the_base_is_one_sentence(base, conversations):
    heads = convert(base, "medusa", medusa_num_heads=2, medusa_tie_lm_head=True)
    batch = {name: tensor.to("meta") for name, tensor in collate_rows(conversations[:2]).items()}
    with pytest.raises(BadInput, match="load the base on the device that trains"):
        heads(**batch)
    assert not any(name.startswith("_base") for name in heads.state_dict())


def test_rows_are_cut_to_the_base_where_no_length_is_given(base):
    row = {"messages": [], "token_ids": [5] * 600, "loss_spans": [[10, 600]]}
    assert [len(c) for c in conversations_from([row], base)] == [512]
    with pytest.raises(BadInput, match="max_length: this base takes at most 512 tokens, got 600"):
        conversations_from([row], base, 600)


@pytest.mark.parametrize("method", ["medusa", "draft"])
def test_a_base_whose_weights_were_taken_over_is_refused(tiny_base, method):
    fast = load_base(tiny_base)
    fast_target(fast)
    with pytest.raises(Unsupported, match="load it again to train"):
        convert(fast, method)


@pytest.mark.parametrize("method", ["medusa", "draft"])
@pytest.mark.parametrize("works", [True, False])
def test_a_base_whose_layers_were_packed_is_refused_and_one_that_nothing_packs_is_not(
    tiny_base, method, works, monkeypatch
):
    monkeypatch.setattr("runtime.linear.packing_works", lambda dtype: works and packing_works(dtype))
    base = load_base(tiny_base)
    pack_known(base, head=False)
    packed = works and packing_works(base.dtype)
    with pytest.raises(Unsupported, match="load it again to train") if packed else nullcontext():
        convert(base, method)
