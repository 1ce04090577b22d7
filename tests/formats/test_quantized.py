"""8-bit exports: the layers that are quantized, the config that servers read, and damaged exports."""

import importlib
from dataclasses import replace

import pytest
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme

from formats import find_format
from formats.checkpoint import CheckpointFiles
from formats.export import build_export
from formats.options import export_options
from models.identity import read_json, tensors_of
from models.quantization import SCHEMES
from tests.formats.test_traps import failures_after, rewrite  # noqa: F401 (a fixture)

FP8, INT8 = ("fp8", "F8_E4M3"), ("w8a8", "I8")


@pytest.mark.parametrize(
    ("kind", "name", "dtype", "scheme"),
    [
        ("eagle3-small", "vllm-fp8", "bfloat16", FP8),
        ("eagle", "sglang-int8", "float32", INT8),
        ("draft", "huggingface-int8", "bfloat16", INT8),
    ],
)
def test_projections_of_the_layers_are_quantized_and_nothing_else(
    kind, name, dtype, scheme, base, checkpoint, tmp_path
):
    folder = checkpoint(kind, dtype)
    report = build_export(folder, base, name, tmp_path / "out")
    assert report.passed and [check.name for check in report.checks] == ["base", "weights", "logits", "tokens"]
    files = CheckpointFiles.read(folder, base.path)
    tables = importlib.import_module(f"tests.formats.tables.{files.method}")
    expected = {}
    for tensor, (shape, stored) in getattr(tables, find_format(name).unquantized)(files).tensors.items():
        if tensor.endswith("_proj.weight"):
            expected |= {tensor: (shape, scheme[1]), f"{tensor}_scale": ((shape[0], 1), "F32")}
        else:
            expected[tensor] = (shape, files.written_type if stored == "FLOAT" else stored)
    entries = [*tensors_of(tmp_path / "out" / "model.safetensors")]
    assert {entry.name: (entry.shape, entry.dtype) for entry in entries} == expected
    option = next(option for option in export_options(folder, base.path) if option.name == name)
    assert option.bytes == sum(entry.end - entry.start for entry in entries)

    config = QuantizationConfig.model_validate(read_json(tmp_path / "out" / "config.json")["quantization_config"])
    assert config.config_groups == {"group_0": preset_name_to_scheme(SCHEMES[scheme[0]], ["Linear"])}
    assert config.format == ("float-quantized" if scheme is FP8 else "int-quantized")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config, _: config["quantization_config"].update(ignore=["lm_head"]), "fc.weight_scale is missing"),
        (lambda config, _: config.pop("quantization_config"), "stored in 8 bits, but not quantized"),
        (lambda _, tensors: tensors["layers.0.mlp.up_proj.weight_scale"].mul_(1.1), "weights: rounding changes"),
    ],
)
def test_a_damaged_export_fails(change, message, failures_after):  # noqa: F811
    assert message in failures_after("eagle3", "vllm-int8", change)


def test_only_formats_whose_server_quantizes_the_draft_are_offered(base, checkpoint):
    options = {option.name: option for option in export_options(checkpoint("medusa"), base.path)}
    assert "vLLM does not quantize the layers of Medusa heads" in options["vllm-int8"].reason
    assert "sglang-int8" not in options, "refused as sglang is, which the list has"
    assert "huggingface" in find_format("vllm-fp8").reason(CheckpointFiles.read(checkpoint("draft"), base.path))
    draft = CheckpointFiles.read(checkpoint("draft"), base.path)
    entry = next(iter(draft.tensors.values()))
    other = replace(draft, tensors={"model.layers.0.mlp.fc1.weight": replace(entry, shape=(8, 8))})
    assert "model.layers.0.mlp.fc1.weight" in find_format("huggingface-fp8").reason(other)
