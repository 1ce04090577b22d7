"""Quantize a base with compressed-tensors, as a checkpoint that transformers and vLLM load.

Weights are rounded to nearest with the scale that covers the largest of a group (no calibration data), by the scales,
packing and config of the compressed-tensors library; embeddings and LM head are kept."""

import contextlib
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from models import identity
from models.base import load_base
from models.damage import UNSAVED, BaseChecksums
from models.quantization import GROUP_SIZES, SCHEMES
from speculoos.checksums import ChecksumCache
from speculoos.errors import Unsupported
from speculoos.reporting import Reporter, check_stop


def quantize_folder(
    source: Path,
    target: Path,
    scheme: str,
    dtype: str,
    reporter: Reporter,
    known: BaseChecksums | None = None,
    cache: ChecksumCache = UNSAVED,
) -> None:
    """Write the unquantized model in `source`, loaded in `dtype`, to the existing folder `target`, with weights of
    `scheme` (a key of SCHEMES). Raises Unsupported for sizes that the scheme cannot have."""
    base = load_base(source, dtype, "cpu", known, cache)
    with _quiet():
        _quantize(base.model, scheme, reporter)
    _save(base.model, target)
    del base
    for file in (*identity.read_files(source), source / "README.md"):
        if file.is_file() and file.name != "config.json":
            shutil.copyfile(file, target / file.name)
    load_base(target, dtype)  # raises if transformers cannot load it


def _quantize(model: Any, scheme: str, reporter: Reporter) -> None:
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme

    preset = preset_name_to_scheme(SCHEMES[scheme], ["Linear"])
    layers = [m for m in model.base_model.modules() if isinstance(m, nn.Linear)]
    if preset.weights.group_size:
        preset.weights.group_size = _group_size(model, layers, scheme)
    head = next(name for name, module in model.named_modules() if module is model.get_output_embeddings())
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": preset}, ignore=[head]))
    for done, layer in enumerate(layers):
        check_stop(reporter)
        reporter.progress(done, len(layers), "layers")
        _set_scales(layer)


def _group_size(model: Any, layers: list[nn.Linear], scheme: str) -> int:
    """The largest of GROUP_SIZES that divides the input sizes of all layers."""
    inputs = {layer.in_features for layer in layers}
    for size in GROUP_SIZES:
        if all(width % size == 0 for width in inputs):
            return size
    raise Unsupported(
        f"{model.name_or_path}: {scheme} has groups of {', '.join(map(str, GROUP_SIZES))} weights, which do not divide "
        f"the sizes of its layers ({', '.join(map(str, sorted(inputs)))}); choose w8a8 or fp8."
    )


def _set_scales(layer: nn.Linear) -> None:
    from compressed_tensors.quantization.utils import calculate_qparams

    args = layer.quantization_scheme.weights
    groups = layer.weight.unflatten(-1, (-1, args.group_size or layer.in_features))
    scale, zero_point = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    layer.weight_scale.data.copy_(scale)
    layer.weight_zero_point.data.copy_(zero_point)


def _save(model: Any, target: Path) -> None:
    from compressed_tensors.compressors import ModelCompressor

    with _quiet():
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        model.config._name_or_path = model.name_or_path = ""  # a path of this machine
        model.save_pretrained(target)
        compressor.update_config(str(target))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide progress bars that no option turns off."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield
