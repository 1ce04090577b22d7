"""A base model as the other rooms see it: weights, tokenizer, the parts drafts borrow, and chosen hidden states.

Knows how to load a Hugging Face folder safely. Does not know caches, trees or jobs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models import foreign, identity, varlen
from models.damage import NO_SUMS, Known, check_base
from models.families import LogitRule, logit_rule
from models.logits import Head, bend
from models.tokenizer import first_line, read_tokenizer, token_ids
from models.tokenizer import load_tokenizer as load_tokenizer
from models.tokenizer import read_eos_ids as read_eos_ids
from speculoos.errors import BadInput, NotFound, SpeculoosError, Unavailable, Unsupported
from speculoos.faults import out_of_memory
from speculoos.sums import ChecksumCache

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
    """Every id that ends an answer, from the generation config, the config and the tokenizer."""
    forward: Any = None
    """What runs this base fast, once it has taken the weights over (`models.runtime.forward.fastest`)."""

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def backbone(self) -> nn.Module:
        """The model without its language-model head."""
        return self.model.get_decoder()

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers, in order."""
        return find_layers(self.model)

    @property
    def embed_tokens(self) -> nn.Module:
        return self.model.get_input_embeddings()

    @property
    def lm_head(self) -> nn.Module:
        """The last linear layer as it is now, a packed one too. What it gives are logits only by way of `logits`."""
        return self.model.get_output_embeddings()

    @property
    def head(self) -> Head:
        """Matrix, bias and rule of the logits, for who multiplies by itself; not of a packed base."""
        return Head(self.lm_head.weight, getattr(self.lm_head, "bias", None), self.logit_rule)

    @cached_property
    def logit_rule(self) -> LogitRule:
        """What becomes of the product with the head."""
        return logit_rule(self.config.to_dict())

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The head's input [..., H] → logits [..., V], those of this model's own forward."""
        return bend(self.lm_head(hidden), self.logit_rule)

    @property
    def final_norm(self) -> nn.Module | None:
        """The norm between the last layer and the head; None where the family has none under a known name."""
        return next((m for name in FINAL_NORMS if (m := getattr(self.backbone, name, None)) is not None), None)

    @property
    def hidden_size(self) -> int:
        return self.lm_head.weight.shape[1]

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def vocab_size(self) -> int:
        """Rows of the head, which may be more than the tokenizer has tokens."""
        return self.lm_head.weight.shape[0]

    @property
    def max_length(self) -> int:
        """Most positions the model was made for."""
        return int(getattr(self.config, "max_position_embeddings", None) or 2048)

    def forward_hidden(
        self, input_ids: torch.Tensor, layers: Sequence[int] = (), lengths: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Run without a cache: the head's input [B, N, H] and the outputs [B, N, H] of 0-based `layers`.

        `lengths` [B] says how many tokens of each row are real: what lies after them is not computed where that can be
        spared.
        """
        if lengths is not None and varlen.can_run(self.config, self.device, lengths):
            return self._forward_rows(input_ids, lengths, layers)
        with capture_layers(self.model, layers) as captured:
            out = self.backbone(input_ids=input_ids, use_cache=False)
        return out.last_hidden_state, tuple(captured)

    def _forward_rows(
        self, input_ids: torch.Tensor, lengths: torch.Tensor, layers: Sequence[int]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        real, tokens, positions = varlen.laid_out(input_ids, lengths)
        with capture_layers(self.model, layers) as captured, varlen.by_row(self.config, lengths.tolist()):
            out = self.backbone(input_ids=tokens, position_ids=positions, use_cache=False)
        return varlen.padded(out.last_hidden_state, real), tuple(varlen.padded(values, real) for values in captured)


@contextmanager
def capture_layers(model: nn.Module, layers: Sequence[int]) -> Iterator[list[torch.Tensor]]:
    """While open, forwards of `model` fill the yielded list with the outputs of 0-based `layers`, in that order."""
    captured: list[Any] = [None] * len(layers)
    modules = find_layers(model) if layers else ()

    def keep(slot: int) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            captured[slot] = output[0] if isinstance(output, tuple) else output

        return hook

    handles = [modules[layer].register_forward_hook(keep(slot)) for slot, layer in enumerate(layers)]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()


def find_layers(model: nn.Module) -> nn.ModuleList:
    """The list of decoder layers: the module list with `num_hidden_layers` members nearest the top."""
    count = model.config.num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise Unsupported(f"{type(model).__name__}: no list of {count} decoder layers was found in this model.")


def aux_layers(num_layers: int) -> tuple[int, int, int]:
    """Output ids (0-based) of the low, middle and high layer EAGLE-3 fuses: [1, n // 2 - 1, n - 4].

    The reference captures the *inputs* of layers 2, n // 2 and n - 3, which are these outputs. Small n is clamped.
    """
    last = num_layers - 1
    return tuple(min(max(i, 0), last) for i in (1, num_layers // 2 - 1, num_layers - 4))


def load_base(
    path: str | Path,
    dtype: str = "float32",
    device: str = "cpu",
    known: Known | None = None,
    sums: ChecksumCache = NO_SUMS,
) -> LoadedBase:
    """Load a local Hugging Face folder: safetensors only, no code from the folder, no network.

    `dtype`: float32, bfloat16, float16, or auto (float32 on a CPU, the folder's own on a GPU). `device`: cpu, cuda,
    cuda:N or auto. `known`: the files are compared with these sums first, which `sums` remembers. Raises NotFound,
    BadInput, Unsupported, Unavailable or Damaged with what to do.
    """
    return wrap_model(*load_parts(path, dtype, device, known, sums), Path(path))


def load_parts(
    path: str | Path,
    dtype: str = "float32",
    device: str = "cpu",
    known: Known | None = None,
    sums: ChecksumCache = NO_SUMS,
    shape: Callable[[Any], Any] | None = None,
) -> tuple[Any, Any]:
    """(transformers' model, tokenizer) of a folder, as `load_base` takes them. `shape` gives the config that the model
    is made by, from the folder's own; weights it has no place for are not read."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise NotFound(f"{folder}: no config.json, so this is not a folder of a Hugging Face model.")
    place = pick_device(device)
    torch_dtype = pick_dtype(dtype, place)
    if known is not None:
        check_base(folder, known, sums)
    foreign.check_sizes(folder, foreign.plain_config(folder), identity.tensors(folder))
    with foreign.shown(folder) as view:
        model = _load_model(view, folder, torch_dtype, shape).to(place).eval().requires_grad_(False)
        tokenizer = read_tokenizer(view, folder)
    if model.get_output_embeddings() is None:
        raise Unsupported(f"{folder}: {type(model).__name__} has no language-model head, so it cannot generate text.")
    return model, tokenizer


def wrap_model(model: Any, tokenizer: Any, path: str | Path = "") -> LoadedBase:
    """A causal model of transformers that is loaded already, as a Base. Freezes it, in place."""
    model.eval().requires_grad_(False)
    path = Path(path or model.name_or_path)
    holders = (model.generation_config, model.config, tokenizer)
    eos_ids = token_ids(getattr(holder, "eos_token_id", None) for holder in holders)
    return LoadedBase(model, tokenizer, path, model.dtype, model.device, eos_ids)


def pick_device(name: str) -> torch.device:
    """auto takes the GPU when there is one. Raises BadInput for a name torch does not know or a GPU not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"Device {name!r} is not known; use cpu, cuda, cuda:N or auto.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput(f"Device {name!r}: no GPU can be used here; choose cpu or auto.")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise BadInput(f"Device {name!r}: there are {count} GPUs here, counted from cuda:0.")
    return device


def has_bfloat16(device: torch.device) -> bool:
    """Whether `device` is a processor that multiplies in bfloat16."""
    return device.type == "cpu" and getattr(torch.cpu, "_is_avx512_bf16_supported", bool)()


def native_dtype(name: str, device: torch.device) -> str:
    """Precision of a frozen base that is trained for; auto takes bfloat16 where products in it run natively, three
    times as fast as fp32 on the processors we measured."""
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    return "bfloat16" if has_bfloat16(device) else "float32"


def pick_dtype(name: str, device: torch.device) -> torch.dtype | str:
    """What transformers takes as `dtype`; auto: float32 on a CPU, the folder's own on a GPU. Raises BadInput."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    if name not in DTYPES:
        raise BadInput(f"Data type {name!r} is not known; use {', '.join(DTYPES)} or auto.")
    return DTYPES[name]


def decoding_dtype(name: str, device: str) -> str:
    """The data type a base answers and is measured in; auto: float32 on a CPU, bfloat16 on a GPU."""
    if name != "auto":
        return name
    return "float32" if pick_device(device).type == "cpu" else "bfloat16"


def _load_model(view: Path, folder: Path, dtype: torch.dtype | str, shape: Callable[[Any], Any] | None = None) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = None
        if shape is not None:
            config = shape(AutoConfig.from_pretrained(view, trust_remote_code=False, local_files_only=True))
        model, info = AutoModelForCausalLM.from_pretrained(
            view,
            config=config,
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise _plain(error, view, folder) from None
    if missing := sorted(info["missing_keys"]):
        raise BadInput(
            f"{folder}: its safetensors files lack {len(missing)} weights that config.json describes (first: "
            f"{missing[0]}); restore both, or fetch the model again."
        )
    model.config._name_or_path = model.name_or_path = str(folder)
    return model


def _plain(error: Exception, view: Path, folder: Path) -> SpeculoosError:
    """What loading the model failed with, as a sentence."""
    if out_of_memory(error):
        return Unavailable(f"{folder}: not enough memory; choose a smaller model or dtype bfloat16.")
    said = first_line(error, view)
    if isinstance(error, OSError):
        return BadInput(f"{folder}: no safetensors weights that can be read ({said}).")
    if "ignore_mismatched_sizes" in str(error):
        return BadInput(f"{folder}: config.json describes other sizes than the weights have; restore it.")
    kind = "" if isinstance(error, ValueError | KeyError) else f"{type(error).__name__}: "
    return Unsupported(f"{folder}: transformers cannot load it as a causal model ({kind}{said}).")
