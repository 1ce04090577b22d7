"""Peak memory of a computation of any size, without allocating it: floats are meta tensors, integers are real.

Integers are computed, since indices determine shapes; writes of float results to them (hits) are skipped."""

import weakref
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, is_autocast_enabled
from torch.autograd import Function
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers import AutoModelForCausalLM, LlamaConfig

from models.base import LoadedBase
from models.draft_layers import base_layer_config
from models.eagle3 import Eagle3Config, Eagle3Draft, ScaledLinear
from models.methods import train_config
from training.eagle3 import Eagle3Method
from training.medusa import medusa_labels


def eagle3_peak(sizes: dict[str, int], length: int, steps: int, vocabulary: int) -> int:
    """Peak bytes of an fp32 EAGLE-3 step on a GPU, beside weights and gradients: forward, loss and backward of one row
    of `length` tokens with a bfloat16 Llama of these `sizes` and a draft vocabulary."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes), dtype=torch.bfloat16).requires_grad_(False)
        base = LoadedBase(model, None, Path(), torch.bfloat16, torch.device("meta"), frozenset())
        vocabularies = {"vocab_size": base.vocab_size, "draft_vocab_size": vocabulary}
        config = Eagle3Config(**{**asdict(base_layer_config(base)), **vocabularies, "aux_layers": (0, 1, 2)})
        draft = Eagle3Draft(config).attach(base)
        draft.fc = ScaledLinear(torch.ones(3 * base.hidden_size), base.hidden_size)
    draft.d2t = torch.zeros(vocabulary, dtype=torch.int64)
    method = Eagle3Method(train_config("eagle3", ttt_steps=steps), base, draft)
    for parameter in method.parameters():
        parameter.grad = torch.empty_like(parameter)
    ids, mask = torch.zeros(1, length, dtype=torch.long), torch.arange(length)[None] > 0
    labels = medusa_labels(ids, mask, steps)
    row, position = (labels[:, :, 0] >= 0).nonzero(as_tuple=True)
    with MetaMemory() as memory:
        hidden = torch.empty(1, length, base.hidden_size, dtype=torch.bfloat16, device="meta")
        features = {"aux": torch.cat([hidden] * 3, -1), "hidden": hidden, "input_ids": ids, "labels": labels}
        features |= {"row": row, "position": position, "in_vocab": torch.ones_like(mask)}
        method(features, 0, torch.ones(steps)).loss.backward()
    return memory.peak


class _RMSNorm(Function):
    """Memory of the fused RMSNorm of GPUs, which keeps its input and one number per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1]))
        return x * weight

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return x.new_empty(x.shape), weight.new_empty(weight.shape)


class _GpuFunctions(TorchFunctionMode):
    def __init__(self, fused_norms: bool) -> None:
        super().__init__()
        self._fused_norms = fused_norms

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor:
            kwargs.pop("device", None)
        elif func is F.rms_norm and self._fused_norms:
            return _RMSNorm.apply(args[0], kwargs["weight"])
        return func(*args, **kwargs)


class MetaMemory(TorchDispatchMode):
    """`peak`: maximum bytes of the float tensors created inside this context that were alive at once."""

    def __init__(self, fused_norms: bool = True) -> None:
        super().__init__()
        self._composite = _GpuFunctions(fused_norms)
        self._autocast = patch("torch.is_autocast_enabled", lambda _device: is_autocast_enabled("cpu"))
        self.live = self.peak = 0

    def __enter__(self) -> "MetaMemory":
        self._composite.__enter__()
        self._autocast.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._autocast.stop()
        self._composite.__exit__(*error)

    def __torch_dispatch__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if any(tensor.is_meta for tensor in tensors):
            target = args[0] if func.__name__.split(".")[0].endswith("_") else None
            if isinstance(target, Tensor) and not target.is_meta:
                return target
            args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
            if "device" in kwargs:
                kwargs["device"] = torch.device("meta")
        out = func(*args, **kwargs)
        existing = {tensor.untyped_storage()._cdata for tensor in tensors}
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in existing:
                self._count(tensor)
        return out

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, storage.nbytes())

    def _free(self, size: int) -> None:
        self.live -= size
