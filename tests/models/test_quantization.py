"""Quantized checkpoints of this project, transformers and other tools: how they load, and which are refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, TorchAoConfig

from decoding.probe import probe
from models import identity, quantization, quantize
from models.base import load_base
from models.card import make_card
from models.dequantize import is_plain
from models.fetch import fetch_base
from models.head_only import load_head_only_base
from models.identity import TensorEntry
from models.quantize import quantize_folder
from models.runtime.weights import not_fast_reason
from models.standalone import StandaloneDraft
from speculoos.errors import BadInput, SpeculoosError, Unavailable, Unsupported
from speculoos.reporting import SilentReporter
from tests.models import hostile
from tests.tiny import tiny_tokenizer

UP = "model.layers.0.mlp.up_proj"


def quantized(source: Path, target: Path, scheme: str) -> Path:
    target.mkdir()
    quantize_folder(source, target, scheme, "float32", SilentReporter())
    return target


@pytest.mark.parametrize(
    ("scheme", "tensor", "dtype", "error"),
    [
        ("fp8", "weight", torch.float8_e4m3fn, 0.07),
        ("w8a8", "weight", torch.int8, 0.02),
        ("w8a16", "weight_packed", torch.int32, 0.02),
        ("w4a16", "weight_packed", torch.int32, 0.25),
    ],
)
def test_a_base_quantized_here_is_another_base_with_rounded_weights(
    scheme: str, tensor: str, dtype: torch.dtype, error: float, tiny_base: Path, tmp_path: Path
) -> None:
    folder = quantized(tiny_base, tmp_path / "new", scheme)
    weights = load_file(folder / "model.safetensors")
    assert weights[f"{UP}.{tensor}"].dtype == dtype and weights["lm_head.weight"].dtype == torch.float32
    written = identity.read_json(folder / "config.json")
    assert written["quantization_config"]["quant_method"] == "compressed-tensors" and "_name_or_path" not in written
    plain, card = make_card(tiny_base), make_card(folder)
    assert card["quantization"] == f"compressed-tensors, {scheme[1] if scheme[0] == 'w' else 8} bits"
    assert (card["parameters"], card["dtype"], card["memory"]) == (plain["parameters"], "float32", plain["memory"])
    assert card["weights_sha256"] != plain["weights_sha256"] and card["size_bytes"] < plain["size_bytes"]
    assert card["tokenizer_sha256"] == plain["tokenizer_sha256"] and set(card["methods"].values()) == {""}

    base, original = load_base(folder), load_base(tiny_base)
    rounded, exact = (b.layers[0].mlp.up_proj.weight for b in (base, original))
    assert 0 < (rounded - exact).abs().max() < error * exact.abs().max()
    assert not_fast_reason(base) == "" and not hasattr(base.config, "quantization_config")
    assert torch.equal(load_head_only_base(folder).lm_head.weight, original.lm_head.weight)
    assert "quantization_config" not in StandaloneDraft.from_base(base, 2).to_json()


def test_several_schemes_in_one_checkpoint_are_each_de_quantized_by_their_own(
    tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme

    def mixed(model: torch.nn.Module, *_: object) -> None:
        four, eight = preset_name_to_scheme("W4A16", ["re:.*mlp.*"]), preset_name_to_scheme("W8A8", ["re:.*attn.*"])
        four.weights.group_size, groups = 32, {"four": four, "eight": eight}
        apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=["lm_head"]))
        for module in model.modules():
            if hasattr(module, "quantization_scheme"):
                quantize._set_scales(module)

    monkeypatch.setattr(quantize, "_quantize", mixed)
    base, plain = load_base(quantized(tiny_base, tmp_path / "new", "")), load_base(tiny_base)
    for part, error in (("mlp.up_proj", 0.25), ("self_attn.q_proj", 0.02)):
        rounded, exact = (model.model.model.layers[1].get_submodule(part).weight for model in (base, plain))
        assert 0 < (rounded - exact).abs().max() < error * exact.abs().max(), part
    assert not_fast_reason(base) and probe(base) < 1e-4


def test_sizes_that_no_group_divides_are_refused(tmp_path: Path) -> None:
    from tests.tiny import make_tiny_base

    folder = make_tiny_base(tmp_path / "base", num_hidden_layers=1, intermediate_size=48)
    with pytest.raises(Unsupported, match=r"w4a16 has groups of 128, 64, 32 weights.*\(32, 48\); choose w8a8 or fp8"):
        quantized(folder, tmp_path / "new", "w4a16")


def foreign(folder: Path, config: dict, block: int = 0, **scales: torch.Tensor) -> torch.Tensor:
    """Turn `folder` into an FP8 checkpoint with the layout of another tool; return the weight that `UP` loads as."""
    weights, expected = load_file(folder / "model.safetensors"), torch.empty(0)
    for name in [name for name in weights if "_proj" in name]:
        fp8 = weights.pop(name).to(torch.float8_e4m3fn)
        scale = torch.rand([-(-size // block) for size in fp8.shape] if block else ()) + 0.5
        weights |= {name: fp8, f"{name}_scale{'_inv' * bool(block)}": scale}
        weights |= {f"{name.removesuffix('weight')}{key}": value.clone() for key, value in scales.items()}
        if name == f"{UP}.weight":
            scale_matrix = scale.repeat_interleave(block, 0).repeat_interleave(block, 1) if block else scale
            expected = fp8.float() * scale_matrix
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    hostile.put(folder, "config.json", quantization_config=config)
    return expected


def test_fp8_checkpoints_of_other_tools_load(tiny_base: Path, tmp_path: Path) -> None:
    """With scales per block, as DeepSeek's, and per tensor, as ModelOpt 0.47 writes them."""
    blocks = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}
    eight = {"dynamic": False, "num_bits": 8, "type": "float"}
    group = {"input_activations": eight, "weights": eight, "targets": ["Linear"]}
    modelopt = {
        **{"config_groups": {"group_0": group}, "ignore": ["lm_head", "model.embed*"], "quant_algo": "FP8"},
        **{"producer": {"name": "modelopt", "version": "0.47.0"}, "quant_method": "modelopt"},
    }
    for name, config, block, scales in (
        ("blocks", blocks, 32, {}),
        ("modelopt", modelopt, 0, {"input_scale": torch.tensor(0.1)}),
    ):
        folder = hostile.copy(tiny_base, tmp_path / name)
        expected = foreign(folder, config, block, **scales)
        base = load_base(folder)
        assert torch.allclose(base.layers[0].mlp.up_proj.weight, expected, rtol=1e-6) and not_fast_reason(base) == ""
        foreign(
            other := hostile.copy(tiny_base, tmp_path / f"{name}-lost"), config, block, pre_quant_scale=torch.ones(1)
        )
        with pytest.raises(Unsupported, match=r"does not use 28 tensors .*layers\.0.*pre_quant_scale"):
            load_base(other)
        before = identity.weights_sha256(folder)
        hostile.put(folder, "config.json", quantization_config={**config, "note": "another meaning"})
        assert identity.weights_sha256(folder) != before == make_card_sum(folder, config)
        hostile.put(folder, "config.json", quantization_config=None)
        with pytest.raises(Unsupported, match="quantized .*no quantization_config that says how"):
            load_base(folder)


def make_card_sum(folder: Path, config: dict) -> str:
    hostile.put(folder, "config.json", quantization_config=config)
    return make_card(folder)["weights_sha256"]


@pytest.fixture(scope="module")
def torchao_base(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of transformers with torchao's int8 weights, which torchao multiplies on a CPU."""
    torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed; it slows every import down")
    folder = tmp_path_factory.mktemp("torchao")
    config = TorchAoConfig(torchao.Int8WeightOnlyConfig(version=2))
    AutoModelForCausalLM.from_pretrained(tiny_base, quantization_config=config).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_torchao_weights_stay_int8_and_a_draft_of_their_layers_is_dense(torchao_base: Path, tiny_base: Path) -> None:
    base, plain = load_base(torchao_base), load_base(tiny_base)
    assert make_card(torchao_base)["parameters"] == make_card(tiny_base)["parameters"]
    up = base.layers[0].mlp.up_proj
    assert up.weight.qdata.dtype == torch.int8 and not is_plain(up) and is_plain(base.lm_head)
    assert not_fast_reason(base) == "a linear layer (Linear) does not use its weight as it is"
    draft = StandaloneDraft.from_base(base, 2)
    assert is_plain(draft.model.model.layers[0].mlp.up_proj)
    dense, exact = (model.model.layers[0].mlp.up_proj.weight for model in (draft.model, plain.model))
    assert torch.allclose(dense, up.weight.dequantize(), atol=1e-6) and (dense - exact).abs().max() < 0.01
    with pytest.raises(Unsupported, match="the weights of this draft are quantized"):
        StandaloneDraft.from_folder(torchao_base, plain)


@pytest.mark.parametrize(
    ("config", "kind", "message"),
    [
        ({"quant_method": "gptq", "bits": 4}, Unavailable, r"\(gptq\), which needs optimum and gptqmodel; install"),
        ({"quant_method": "awq", "bits": 4}, Unavailable, r"\(awq\), which needs gptqmodel; .*pip install gptqmodel"),
        ({"load_in_4bit": True}, Unavailable, r"\(bitsandbytes\), which needs bitsandbytes"),
        ({"quant_method": "torchao"}, Unavailable, "needs torchao"),
        ({"quant_method": "compressed-tensors"}, Unavailable, "needs compressed-tensors"),
        ({"quant_method": "aqlm"}, Unsupported, r"\(aqlm\), which is not supported; FP8, compressed-tensors, ModelOpt"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, Unsupported, "only FP8 loads, and this is NVFP4"),
        ("gptq", BadInput, "quantization_config: expected a JSON object"),
        (
            {"quant_method": "compressed-tensors", "config_groups": [1]},
            BadInput,
            "config_groups: expected a JSON object",
        ),
        (
            {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"u": {}}}},
            Unsupported,
            "transform_config: transformers does not apply the rotations",
        ),
    ],
    ids=str,
)
def test_a_format_that_cannot_be_loaded_is_refused_with_the_reason(
    config: object, kind: type[SpeculoosError], message: str, tiny_base: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(quantization, "find_spec", lambda name: None)  # as if no package were installed
    folder = hostile.copy(tiny_base, tmp_path / "base")
    hostile.put(folder, "config.json", quantization_config=config)
    with pytest.raises(kind, match=message):
        load_base(folder)


def test_pickled_quantized_weights_are_refused(tiny_base: Path, tmp_path: Path) -> None:
    folder = hostile.copy(tiny_base, tmp_path / "base")
    hostile.put(folder, "config.json", quantization_config={"quant_method": "torchao", "quant_type": "int8"})
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(Unsupported, match=r"base: its quantized weights \(torchao\) are pickles, which may run code"):
        fetch_base("folder", str(folder), tmp_path / "new", SilentReporter())


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        ({"quant_method": "gptq", "bits": 4}, {"qweight": ("I32", 128), "qzeros": ("I32", 2), "g_idx": ("I32", 32)}),
        ({"quant_method": "awq", "bits": 8}, {"qweight": ("I32", 256), "scales": ("F16", 9), "qzeros": ("I32", 9)}),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            {"weight": ("U8", 512), "weight.absmax": ("F32", 8), "weight.quant_state.bitsandbytes__nf4": ("U8", 70)},
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, {"weight": ("I8", 1024), "SCB": ("F32", 32)}),
        (
            {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}},
            {"_weight_qdata": ("U8", 512), "_weight_scale_and_zero": ("BF16", 64)},
        ),
        ({"quant_method": "fp8"}, {"weight": ("F8_E4M3", 1024), "weight_scale_inv": ("F32", 4)}),
    ],
    ids=lambda value: value.get("quant_method", ""),
)
def test_packed_weights_count_as_parameters_and_their_scales_do_not(config: dict, tensors: dict) -> None:
    def entries(parts: dict) -> list[TensorEntry]:
        return [TensorEntry(f"l.{n}", dtype, (size,), Path("x"), 0, 0) for n, (dtype, size) in parts.items()]

    norm = {"norm.weight": ("BF16", 32)}
    assert quantization.count_parameters(entries(tensors | norm), {"quantization_config": config}) == 1024 + 32
