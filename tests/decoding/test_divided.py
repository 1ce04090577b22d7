"""A base whose layers are divided among two emulated GPUs decodes as on one."""

from pathlib import Path

import pytest
import torch

from decoding.target import Target, fast_target
from models.base import LoadedBase, load_base
from models.placement import divide
from speculoos.errors import BadInput
from tests.decoding.test_on_a_gpu import DRAFTERS, answers, drafter_of, tokens
from tests.tiny import FAMILIES, make_tiny_base
from tests.tools.emulated_cuda import emulated_cuda


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 2 has masks by type of layer, tied embeddings and a rule for logits."""
    kind, overrides = FAMILIES["gemma2"]
    sizes = {"intermediate_size": 320, "num_hidden_layers": 3}
    return make_tiny_base(tmp_path_factory.mktemp("divided"), kind, **overrides, **sizes)


def load(folder: Path, device: str = "cuda:0,cuda:1") -> LoadedBase:
    """Tensors are read directly to their GPUs; the loaded model is never moved."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Module, "to", lambda *_, **__: pytest.fail("a whole model is moved"))
        return load_base(folder, device=device)


def test_every_drafter_emits_the_tokens_of_the_base_on_one_gpu(folder: Path) -> None:
    with emulated_cuda(2):
        single = Target(load(folder, "cuda"), 100)
        expected = tokens(single, drafter_of(single, "none"), 3)
        target = fast_target(base := load(folder), 100)
        assert [device.index for device in base.layer_devices] == [0, 1, 1] and "several GPUs" in target.notice
        other_weights = [weight for name, weight in base.model.named_parameters() if ".layers." not in name]
        assert {weight.device for weight in other_weights} == {base.device} == {torch.device("cuda", 0)}
        for name in DRAFTERS:
            assert tokens(target, drafter_of(target, name), 3) == expected, name
        assert {storage.device.index for storage in target.cache.keys} == {0, 1}


def test_batches_and_hidden_states_are_those_of_one_gpu(folder: Path) -> None:
    with emulated_cuda(2):
        single, base = load(folder, "cuda"), load(folder)
        rows = torch.arange(24, device="cuda").view(2, 12)
        actual, expected = (
            [last, *layers] for last, layers in (model.forward_hidden(rows, (0, 2)) for model in (base, single))
        )
        assert [values.tolist() for values in actual] == [values.tolist() for values in expected]
        assert {values.device for values in actual} == {base.device}
        assert answers(base, 4) == answers(single, 4)


def test_several_devices_are_different_gpus(folder: Path) -> None:
    for wrong in ("cpu,cpu", "cpu,cuda:0", "cuda:0,cuda:0"):
        with emulated_cuda(2), pytest.raises(BadInput, match="different GPUs, such as cuda:0,cuda:1"):
            load_base(folder, device=wrong)


def test_tensors_of_two_gpus_do_not_mix() -> None:
    with emulated_cuda(2), pytest.raises(RuntimeError, match="found cuda:0 and {'cuda:1'}"):
        torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1")


def test_gpus_have_equal_loads() -> None:
    assert divide([10] * 8, 0, 4) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert divide([10] * 8, 20, 5) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert divide([10] * 7, 20, 3) == [0, 1, 1, 1, 2, 2, 2]
    assert divide([10] * 4, 1000, 3) == [1, 1, 2, 2]
    assert divide([30, 10, 10, 10], 0, 2) == [0, 1, 1, 1]
