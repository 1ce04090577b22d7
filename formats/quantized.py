"""8-bit exports: linear layers of a draft's decoder layers as compressed-tensors stores them, with int8 or FP8 weights
and one scale per output channel. Servers quantize activations per token. All other weights keep their type: SGLang
cannot quantize `fc`, and by convention lm_head and embeddings are not quantized. No torch at import."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from formats.plan import ROWS, ExportPlan, TensorSource
from formats.report import Check
from models.identity import FLOATS
from models.quantization import CONFIG, SCHEMES

LAYERS = re.compile(r"(.+\.)?layers\.\d+\.(self_attn|mlp)\.\w+_proj\.weight")
"""Names of the weights that are quantized."""
IGNORE = [r"re:(.*\.)?(fc|lm_head)$"]
"""Linear layers that are not quantized, by their names in servers."""
TYPES = {"fp8": ("float", "F8_E4M3"), "w8a8": ("int", "I8")}
"""{scheme: (type in the config, safetensors type)}; the schemes are those of models.quantization."""


def quantized_plan(plan: ExportPlan, scheme: str) -> ExportPlan:
    """The plan with quantized layers and the `quantization_config` that vLLM and SGLang read."""
    tensors: list[TensorSource] = []
    for source in plan.tensors:
        tensors += _quantized(source, scheme) if LAYERS.fullmatch(source.name) else [source]
    return replace(plan, tensors=tensors, config={**plan.config, CONFIG: quantization_config(scheme)})


def quantization_config(scheme: str) -> dict[str, Any]:
    """As compressed-tensors writes it, without the keys that are unset."""
    kind = TYPES[scheme][0]
    common = {"num_bits": 8, "type": kind, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**common, "strategy": "channel", "dynamic": False},
        "input_activations": {**common, "strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": IGNORE,
    }


def _quantized(source: TensorSource, scheme: str) -> list[TensorSource]:
    """A weight [out, in] and its scale [out, 1] in float32."""

    def scales() -> Iterator[bytes]:
        for rows in _rows(source):
            yield _scale(rows, scheme).numpy().tobytes()

    def weights() -> Iterator[bytes]:
        import torch
        from compressed_tensors.quantization.lifecycle.forward import quantize

        args = _arguments(scheme)
        for rows in _rows(source):
            scale = _scale(rows, scheme)
            stored = quantize(rows, scale, torch.zeros_like(scale), args, dtype=args.pytorch_dtype())
            yield stored.view(torch.uint8).numpy().tobytes()

    scale_name, shape = f"{source.name.removesuffix('weight')}weight_scale", (source.shape[0], 1)
    return [
        TensorSource(source.name, TYPES[scheme][1], source.shape, weights),
        TensorSource(scale_name, "F32", shape, scales),
    ]


def _rows(source: TensorSource) -> Iterator[Any]:
    """The matrix in float32, a few rows at a time."""
    import torch

    stored = torch.frombuffer(bytearray(b"".join(source.chunks())), dtype=getattr(torch, FLOATS[source.dtype]))
    for rows in stored.view(source.shape).split(ROWS):
        yield rows.float()


def _scale(rows: Any, scheme: str) -> Any:
    """[rows, 1]: the largest weight of each row is the largest number of the 8-bit type."""
    from compressed_tensors.quantization.utils import calculate_qparams

    return calculate_qparams(rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True), _arguments(scheme))[0].float()


def _arguments(scheme: str) -> Any:
    from compressed_tensors.quantization import preset_name_to_scheme

    return preset_name_to_scheme(SCHEMES[scheme], ["Linear"]).weights


def round_draft(draft: Any, weights: Path, scheme: str) -> Check:
    """Give `draft` (float32) the rounded weights of an export, so that it should draft like the export. The check fails
    if a weight in the file differs from the draft's by more than half a step of the 8-bit type."""
    import torch
    from safetensors.torch import load_file

    stored, model = load_file(weights), draft.model if draft.method == "draft" else draft
    error, norm, near = 0.0, 0.0, True
    for name, weight in model.named_parameters():
        if not LAYERS.fullmatch(name):
            continue
        scale = stored[f"{name}_scale"]
        rounded = stored[name].float() * scale
        # FP8 has three bits of mantissa, and its smallest number is 2^-9
        half_step = torch.maximum(weight.abs() / 16, scale / 1024) if scheme == "fp8" else scale / 2
        near &= bool(((rounded - weight).abs() <= 1.001 * half_step).all())
        error, norm = error + float((rounded - weight).square().sum()), norm + float(weight.square().sum())
        weight.data.copy_(rounded)
    relative = (error / norm) ** 0.5 if norm else 0.0
    return Check("weights", near, f"rounding changes the quantized weights by {relative:.1%} (root mean square)")
