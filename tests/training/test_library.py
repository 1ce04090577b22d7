"""docs/library.md: a loaded model becomes a draft in training under Hugging Face's Trainer, and is restored."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch

from decoding.fast import fast_target
from decoding.fast_layers import pack_known
from decoding.packed import packing_works
from models.base import load_base
from speculoos.errors import BadInput, Unsupported
from training.convert import collate_rows, convert

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


@pytest.mark.parametrize("method", ["medusa", "draft"])
@pytest.mark.parametrize("take", [fast_target, partial(pack_known, head=False)])
def test_a_base_whose_weights_were_taken_over_is_refused(tiny_base, method, take):
    fast = load_base(tiny_base)
    take(fast)
    if take is not fast_target and not packing_works(fast.dtype):
        pytest.skip("nothing is packed here")
    with pytest.raises(Unsupported, match="load it again to train"):
        convert(fast, method)
