"""Stand-ins for the layers of vLLM's and SGLang's draft model classes, so that the released classes can be instantiated
and load weights with their own name mappings, on any machine. Parameters start as NaN, so that missing weights are
detected; every tensor that is copied into a parameter is recorded. Nothing can be run.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

STACKED = ((".qkv_proj", ".q_proj", "q"), (".qkv_proj", ".k_proj", "k"), (".qkv_proj", ".v_proj", "v"),
           (".gate_up_proj", ".gate_proj", 0), (".gate_up_proj", ".up_proj", 1))  # fmt: skip
reached: set[int] = set()
"""Ids of tensors copied into a parameter, and of these parameters."""
current: Any = SimpleNamespace()
"""Return value of get_current_vllm_config."""


class Anything(type):
    """Metaclass for names without a stand-in: callable, with any attribute, usable in annotations."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *_args: Any, **_further: Any) -> Any:
        return cls


def copy_in(param: nn.Parameter, tensor: Tensor, rows: slice = slice(None)) -> None:
    """Copy a tensor. Raises ValueError if its shape differs."""
    if param.data[rows].shape != tensor.shape:
        raise ValueError(f"a parameter of {list(param.data[rows].shape)} cannot load {list(tensor.shape)}")
    param.data[rows] = tensor.to(param.dtype)
    reached.update((id(tensor), id(param)))


def empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.full(shape, float("nan")), requires_grad=False)


class Product(nn.Module):
    """A linear layer; `parts` are the numbers of rows of q, k, v, or of gate and up."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False, parts: dict[Any, int] | None = None):
        super().__init__()
        self.weight = empty(outputs, inputs)
        self.bias = empty(outputs) if bias else None
        self.quant_method = None
        self.parts = parts or {}
        for param in self.parameters():
            param.weight_loader = self.load if parts else copy_in

    def load(self, param: nn.Parameter, tensor: Tensor, part: Any) -> None:
        first = sum(size for name, size in [*self.parts.items()][: [*self.parts].index(part)])
        copy_in(param, tensor, slice(first, first + self.parts[part]))


def replicated(input_size: int, output_size: int, bias: bool = False, **_: Any) -> Product:
    return Product(input_size, output_size, bias)


def qkv(
    hidden_size: int, head_size: int, total_num_heads: int, total_num_kv_heads: int, bias: bool = False, **_: Any
) -> Product:
    q, k = total_num_heads * head_size, total_num_kv_heads * head_size
    return Product(hidden_size, q + 2 * k, bias, {"q": q, "k": k, "v": k})


def merged(input_size: int, output_sizes: list[int], bias: bool = False, **_: Any) -> Product:
    return Product(input_size, sum(output_sizes), bias, dict(enumerate(output_sizes)))


class PeerRows(nn.Module):
    """Embedding or LM head; a file must have all of its rows."""

    def __init__(self, rows: int, width: int, **_: Any):
        super().__init__()
        self.weight = empty(rows, width)
        self.weight.weight_loader = copy_in


class Norm(nn.Module):
    def __init__(self, width: int, *_args: Any, **_further: Any):
        super().__init__()
        self.weight = empty(width)
        self.variance_epsilon = 0.0


class SelfAttention(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        heads, dim = config.num_attention_heads, config.head_dim
        self.hidden_size, self.head_dim = config.hidden_size, dim
        self.total_num_heads, self.total_num_kv_heads = heads, config.num_key_value_heads
        self.qkv_proj = qkv(config.hidden_size, dim, heads, config.num_key_value_heads)
        self.o_proj = Product(heads * dim, config.hidden_size)


class GatedMlp(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int, *_args: Any, **_further: Any):
        super().__init__()
        self.gate_up_proj = merged(hidden_size, [intermediate_size] * 2)
        self.down_proj = Product(intermediate_size, hidden_size)


class PeerDecoderLayer(nn.Module):
    """The servers' Llama layer; arguments of vLLM (vllm_config, prefix, config) or SGLang (config, layer_id, …)."""

    def __init__(self, first: Any, *_args: Any, config: Any = None, **_further: Any):
        super().__init__()
        config = config or (first if hasattr(first, "hidden_size") else current.speculative_config.draft)
        self.hidden_size = config.hidden_size
        self.self_attn = SelfAttention(config)
        self.mlp = GatedMlp(config.hidden_size, config.intermediate_size)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)


class CausalLM(nn.Module):
    """The servers' LlamaForCausalLM, which loads the weights of SGLang's EAGLE class."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        params = dict(self.named_parameters())
        for name, tensor in weights:
            part = next(((new, old, shard) for new, old, shard in STACKED if old in name), None)
            if part is None:
                getattr(params[name], "weight_loader", copy_in)(params[name], tensor)
            else:
                param = params[name.replace(part[1], part[0])]
                param.weight_loader(param, tensor, part[2])


class Mapper:
    """vLLM's WeightsMapper: replaces parts of names, drops (None) or stacks tensors."""

    def __init__(self, orig_to_new_substr: Any = None, orig_to_new_stacked: Any = None, **_: Any):
        self.substr, self.stacked = orig_to_new_substr or {}, orig_to_new_stacked or {}

    def __call__(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor, Any]]:
        for name, tensor in weights:
            if any(old in name and new is None for old, new in self.substr.items()):
                continue
            for old, new in self.substr.items():
                name = name.replace(old, new or "")
            old, (new, shard) = next(((o, n) for o, n in self.stacked.items() if o in name), ("", ("", None)))
            yield name.replace(old, new) if old else name, tensor, shard


class Loader:
    """vLLM's AutoWeightsLoader: children with `load_weights` load their own. Raises KeyError for unknown names."""

    def __init__(self, module: nn.Module, **_: Any):
        self.module = module

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], mapper: Any = None) -> set[str]:
        params, own = dict(self.module.named_parameters()), {}
        for name, tensor, shard in (mapper or Mapper())(weights):
            child, _, rest = name.partition(".")
            if hasattr(getattr(self.module, child, None), "load_weights"):
                own.setdefault(child, []).append((rest, tensor))
            elif shard is None:
                getattr(params[name], "weight_loader", copy_in)(params[name], tensor)
            else:
                params[name].weight_loader(params[name], tensor, shard)
        for child, tensors in own.items():
            getattr(self.module, child).load_weights(tensors)
        return set(params)


def compiled(cls: Any = None, **_: Any) -> Any:
    return cls if cls is not None else lambda made: made


@contextmanager
def nothing(*_args: Any, **_further: Any) -> Iterator[None]:
    yield


ROPE = SimpleNamespace(head_size=0, cos_sin_cache=None, is_neox_style=True)
PARTS = {
    **dict.fromkeys(("VocabParallelEmbedding", "ParallelLMHead"), PeerRows),
    **dict.fromkeys(("LlamaForCausalLM", "Qwen3ForCausalLM"), CausalLM),
    **dict.fromkeys(("LlamaMLP", "Qwen2MLP"), GatedMlp),
    **dict.fromkeys(("ReplicatedLinear", "RowParallelLinear"), replicated),
    **{"RMSNorm": Norm, "QKVParallelLinear": qkv, "MergedColumnParallelLinear": merged},
    **{"LlamaDecoderLayer": PeerDecoderLayer, "AutoWeightsLoader": Loader},
    **{"support_torch_compile": compiled, "default_weight_loader": copy_in, "WeightsMapper": Mapper},
    "LogitsProcessor": lambda *_args, **_further: nn.Identity(),
    "layer_stack": nothing,
    "get_current_vllm_config": lambda: current,
    "get_tensor_model_parallel_world_size": lambda: 1,
    "get_tensor_model_parallel_rank": lambda: 0,
    "get_parallel": lambda: SimpleNamespace(tp_size=1),
    "current_platform": SimpleNamespace(is_rocm=lambda: False),
    "is_npu": lambda: False,
    "get_compiler_backend": lambda: "eager",
    "get_rope_config": lambda config: (config.rope_parameters["rope_theta"], None),
    "get_rope": lambda *_args, **_further: ROPE,
    "get_hf_file_bytes": lambda *_: None,
    "get_draft_quant_config": lambda _: None,
    "get_spec": lambda: SimpleNamespace(speculative_draft_window_size=None),
    "maybe_prefix": lambda prefix, name: f"{prefix}.{name}",
    "add_prefix": lambda name, prefix: f"{prefix}.{name}",
    "process_eagle_weight": lambda model, name: None,
}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that provides all modules of vLLM and SGLang with the stand-ins."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.split(".")[0] in ("vllm", "sglang"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: PARTS.get(name) or Anything(name, (), {})  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def run_source(name: str, source: str) -> types.ModuleType:
    """Execute the source of a server's module with the stand-ins."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
    module = sys.modules[name] = types.ModuleType(name)
    module.__package__ = name.rpartition(".")[0]
    exec(compile(source, name, "exec"), module.__dict__)
    return module
