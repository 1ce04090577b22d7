"""Load a base model from a Hugging Face folder safely; its embeddings, LM head and hidden states for draft models."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models import identity, placement, quantization, untrusted, varlen
from models.damage import UNSAVED, BaseChecksums, check_base
from models.dequantize import finish_loading
from models.families import LogitRule, logit_rule
from models.logits import Head, apply_logit_rule
from models.placement import find_layers as find_layers
from models.tokenizer import first_line, read_tokenizer, token_ids
from models.tokenizer import load_tokenizer as load_tokenizer
from models.tokenizer import read_eos_ids as read_eos_ids
from speculoos.checksums import ChecksumCache
from speculoos.errors import BadInput, NotFound, SpeculoosError, Unavailable, Unsupported
from speculoos.faults import out_of_memory

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FINAL_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")


@dataclass(eq=False)
class LoadedBase:
    """A frozen causal language model with its tokenizer. `load_base` makes one."""

    model: Any
    tokenizer: Any
    path: Path
    dtype: torch.dtype
    device: torch.device
    eos_ids: frozenset[int]
    """End-of-sequence ids of the generation config, the config and the tokenizer."""
    forward: Any = None
    """The fast forward of this base, once it owns the weights (`models.runtime.forward.fastest_forward`)."""
    layer_devices: tuple[torch.device, ...] = ()
    """The device of each layer, if they are divided among several GPUs. Everything else is on `device`."""
    mtp: Any = None
    """transformers' `MtpModel` of this base, once it has drafted (`decoding.drafters.mtp.load_mtp`)."""

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def backbone(self) -> nn.Module:
        return self.model.get_decoder()

    @property
    def layers(self) -> nn.ModuleList:
        return find_layers(self.model)

    @property
    def embed_tokens(self) -> nn.Module:
        return self.model.get_input_embeddings()

    @property
    def lm_head(self) -> nn.Module:
        """The output layer, possibly packed. Use `logits` to apply the logit rule too."""
        return self.model.get_output_embeddings()

    @property
    def head(self) -> Head:
        """Weight, bias and logit rule, for callers that multiply themselves; not for a packed base."""
        return Head(self.lm_head.weight, getattr(self.lm_head, "bias", None), self.logit_rule)

    @cached_property
    def logit_rule(self) -> LogitRule:
        return logit_rule(self.config.to_dict())

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Input of the LM head [..., H] → logits [..., V], equal to those of this model's forward."""
        return apply_logit_rule(self.lm_head(hidden), self.logit_rule)

    @property
    def final_norm(self) -> nn.Module | None:
        """The norm between the last layer and the LM head; None when it has no known name."""
        return next((m for name in FINAL_NORMS if (m := getattr(self.backbone, name, None)) is not None), None)

    @property
    def hidden_size(self) -> int:
        return self.lm_head.weight.shape[1]

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def vocab_size(self) -> int:
        """Rows of the LM head; may exceed the size of the tokenizer."""
        return self.lm_head.weight.shape[0]

    @property
    def max_length(self) -> int:
        return int(getattr(self.config, "max_position_embeddings", None) or 2048)

    def forward_hidden(
        self, input_ids: torch.Tensor, layers: Sequence[int] = (), lengths: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Run without a cache: the input of the LM head [B, N, H] and the outputs [B, N, H] of 0-based `layers`.
        `lengths` [B]: number of tokens of each row; padding after them is not computed where possible."""
        if lengths is not None and varlen.can_run(self.config, self.device, lengths):
            return self._forward_rows(input_ids, lengths, layers)
        with capture_layers(self.model, layers) as captured:
            out = self.backbone(input_ids=input_ids, use_cache=False)
        return out.last_hidden_state, tuple(values.to(self.device) for values in captured)

    def _forward_rows(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, layers: Sequence[int]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        real, tokens, positions = varlen.unpad(input_ids, lengths)
        with capture_layers(self.model, layers) as captured, varlen.rows_attention(self.config, lengths.tolist()):
            out = self.backbone(input_ids=tokens, position_ids=positions, use_cache=False)
        return varlen.pad_rows(out.last_hidden_state, real), tuple(varlen.pad_rows(values, real) for values in captured)


@contextmanager
def capture_layers(model: nn.Module, layers: Sequence[int]) -> Iterator[list[torch.Tensor]]:
    """Within the context, each forward of `model` fills the yielded list with the outputs of 0-based `layers`."""
    captured: list[Any] = [None] * len(layers)
    modules = find_layers(model) if layers else ()

    def hook(slot: int, _module: nn.Module, _args: Any, output: Any) -> None:
        captured[slot] = output[0] if isinstance(output, tuple) else output

    handles = [modules[layer].register_forward_hook(partial(hook, slot)) for slot, layer in enumerate(layers)]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()


def aux_layers(num_layers: int) -> tuple[int, int, int]:
    """Ids (0-based) of the low, middle and high layers whose outputs EAGLE-3 fuses: [1, n // 2 - 1, n - 4], clamped.
    The reference captures the *inputs* of layers 2, n // 2 and n - 3, which are these outputs."""
    last = num_layers - 1
    return tuple(min(max(i, 0), last) for i in (1, num_layers // 2 - 1, num_layers - 4))


def load_base(
    path: str | Path,
    dtype: str = "float32",
    device: str = "cpu",
    known: BaseChecksums | None = None,
    checksum_cache: ChecksumCache = UNSAVED,
) -> LoadedBase:
    """Load a local Hugging Face folder: safetensors only, no code from the folder, no network. `dtype`: float32,
    bfloat16 or float16. `device`: cpu, cuda, cuda:N, auto, or several GPUs, such as cuda:0,cuda:1, among which the
    layers are divided (`models.placement`). `known`: checksums that the files must match; `checksum_cache` caches those
    of files. Raises NotFound, BadInput, Unsupported, Unavailable or Damaged."""
    return wrap_model(*load_parts(path, dtype, device, known, checksum_cache), Path(path))


def load_parts(
    path: str | Path,
    dtype: str = "float32",
    device: str = "cpu",
    known: BaseChecksums | None = None,
    checksum_cache: ChecksumCache = UNSAVED,
    edit_config: Callable[[Any], Any] | None = None,
) -> tuple[Any, Any]:
    """(transformers model, tokenizer) of a folder; arguments as in `load_base`. `edit_config` maps the folder's config
    to the one used to build the model; weights that this model lacks are not read."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise NotFound(f"{folder}: no config.json, so this is not a folder of a Hugging Face model.")
    devices = pick_devices(device)
    if (torch_device := devices[0]).type == "cuda":
        _choose_kernels()
    if dtype not in DTYPES:
        raise BadInput(f"Data type {dtype!r} is not known; use {', '.join(DTYPES)}.")
    torch_dtype = DTYPES[dtype]
    if known is not None:
        check_base(folder, known, checksum_cache)
    safe_config = untrusted.read_safe_config(folder)
    untrusted.check_sizes(folder, safe_config, identity.tensors(folder))
    quantized = quantization.method_of(safe_config) if edit_config is None else ""
    if quantized:
        quantization.check_packages(safe_config, str(folder))
    with untrusted.sanitised_folder(folder) as clean:
        placed = quantized or torch_device.type != "cpu"  # each tensor is read to its device
        model = _load_model(clean, folder, torch_dtype, devices if placed else None, edit_config)
        model = (finish_loading(model, torch_dtype) if quantized else model).eval().requires_grad_(False)
        tokenizer = read_tokenizer(clean, folder)
    if model.get_output_embeddings() is None:
        raise Unsupported(f"{folder}: {type(model).__name__} has no language-model head, so it cannot generate text.")
    return model, tokenizer


def wrap_model(model: Any, tokenizer: Any, path: str | Path = "") -> LoadedBase:
    """Wrap a loaded transformers causal LM as a LoadedBase. Freezes it in place."""
    model.eval().requires_grad_(False)
    path = Path(path or model.name_or_path)
    holders = (model.generation_config, model.config, tokenizer)
    eos_ids = token_ids(getattr(holder, "eos_token_id", None) for holder in holders)
    return LoadedBase(
        model, tokenizer, path, model.dtype, model.device, eos_ids, layer_devices=placement.layer_devices(model)
    )


def pick_device(name: str) -> torch.device:
    """The device of a name; `cuda` is the current GPU, with its number. auto: the GPU if available. Raises BadInput for
    an unknown device name or a missing GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"Device {name!r} is not known; use cpu, cuda, cuda:N or auto.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput(f"Device {name!r}: no GPU is available; choose cpu or auto.")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise BadInput(f"Device {name!r}: only {count} GPUs are available, numbered from cuda:0.")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def pick_devices(name: str) -> list[torch.device]:
    """As `pick_device`; several GPUs are separated by commas."""
    devices = [pick_device(part.strip()) for part in name.split(",")]
    if len(devices) > 1 and (len(set(devices)) < len(devices) or any(device.type != "cuda" for device in devices)):
        raise BadInput(f"Device {name!r}: several devices must be different GPUs, such as cuda:0,cuda:1.")
    return devices


def lease_name(device: torch.device) -> str:
    """The device's name in leases: `cpu`, or the UUID of a GPU, whose number depends on CUDA_VISIBLE_DEVICES."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else device.type


def _choose_kernels() -> None:
    """For this process: attention without cuDNN, which builds a plan for every new shape (tens of milliseconds), and
    products without Triton, which needs a C compiler and Python's headers (pytorch/pytorch#196977: rotary embeddings of
    transformers fail without)."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    if native := getattr(torch.backends, "python_native", None):  # a module of 2.13 that may be renamed
        native.triton.enabled = False


def has_bfloat16(device: torch.device) -> bool:
    """Whether `device` is a CPU with native bfloat16 matrix products."""
    return device.type == "cpu" and getattr(torch.cpu, "_is_avx512_bf16_supported", bool)()


def training_dtype(name: str, device: torch.device) -> str:
    """Dtype of the frozen base during training. default: bfloat16 on a GPU that does not emulate it, else float32;
    auto: also on a CPU where it is native (three times as fast as fp32), and float16 on other GPUs."""
    if name not in ("default", "auto"):
        return name
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if native else "float32" if name == "default" else "float16"
    return "bfloat16" if name == "auto" and has_bfloat16(device) else "float32"


def decoding_dtype(name: str, device: str) -> str:
    """Dtype of a base for generation and evaluation; auto: float32 on a CPU, bfloat16 on a GPU."""
    if name != "auto":
        return name
    return "float32" if pick_devices(device)[0].type == "cpu" else "bfloat16"


def _load_model(
    clean: Path,
    folder: Path,
    dtype: torch.dtype,
    devices: Sequence[torch.device] | None,
    edit_config: Callable[[Any], Any] | None,
) -> Any:
    """`devices`: where to load the model to; None: a CPU."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(clean, trust_remote_code=False, local_files_only=True)
        if edit_config is not None:
            config = edit_config(config)
        quantized = hasattr(config, quantization.CONFIG)
        quiet = quantized or edit_config is not None  # warnings of unused weights and missing layers, as intended
        device_map = placement.device_map(config, devices) if devices else None
        with _quiet() if quiet else contextlib.nullcontext():
            model, info = AutoModelForCausalLM.from_pretrained(
                clean,
                config=config,
                dtype=dtype,
                trust_remote_code=False,
                use_safetensors=True,
                local_files_only=True,
                device_map=device_map,
                output_loading_info=True,
            )
    except Exception as error:
        raise _load_error(error, clean, folder) from None
    if devices and len(devices) > 1:
        placement.drop_root_hook(model)
    if quantized:
        quantization.check_unused(info["unexpected_keys"], folder)
    if missing := sorted(info["missing_keys"]):
        raise BadInput(
            f"{folder}: its safetensors files lack {len(missing)} weights that config.json describes (first: "
            f"{missing[0]}); restore both, or fetch the model again."
        )
    model.config._name_or_path = model.name_or_path = str(folder)
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warnings of transformers."""
    log = logging.getLogger("transformers")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _load_error(error: Exception, clean: Path, folder: Path) -> SpeculoosError:
    if out_of_memory(error):
        return Unavailable(f"{folder}: not enough memory; choose a smaller model or dtype bfloat16.")
    message = first_line(error, clean)
    if isinstance(error, OSError):
        return BadInput(f"{folder}: no safetensors weights that can be read ({message}).")
    if "ignore_mismatched_sizes" in str(error):
        return BadInput(f"{folder}: config.json does not match the sizes of the weights; restore it.")
    kind = "" if isinstance(error, ValueError | KeyError) else f"{type(error).__name__}: "
    return Unsupported(f"{folder}: transformers cannot load it as a causal model ({kind}{message}).")
