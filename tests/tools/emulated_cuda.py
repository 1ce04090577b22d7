"""CUDA devices emulated on the CPU, to run GPU code without a GPU.

Tensors on `cuda:0` are wrappers around CPU tensors. As on a GPU, an operation on tensors of several devices raises,
unless the others are on the CPU and have no dimension. Kernel launches and host synchronizations are counted. A graph
is emulated by running its recorded operations again on the same storages; synchronizations during capture raise. Not
emulated: memory, streams, and the rounding of kernels.
"""

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

CUDA = torch.device("cuda", 0)
NO_KERNEL = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "lift_fresh", "set_", "resize_")
"""Operations that launch no kernel, besides views and reads by the host."""
SYNCHRONIZING = (
    "nonzero",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "masked_select",
    "equal",
    "repeat_interleave",
)
"""Operations whose result's shape or value the host must know."""
TO_HOST = "_local_scalar_dense"
"""The operation of `item`, `int`, `float` and `bool`."""
FUSED = (torch.nn.functional.scaled_dot_product_attention, torch.nn.functional.rms_norm)
"""Functions that are one kernel on CUDA and several operations here."""
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
COPYING = ("copy_", "_to_copy")
MAKING, MOVING = {torch.tensor, torch.as_tensor}, {torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda}
INDEXED = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}
OWN = {*FUSED, *MAKING, *MOVING, *INDEXED, torch.Tensor.pin_memory, torch.Tensor.tolist, torch.Tensor.numpy}
"""Python functions that are not simply called."""
SEQUENCES = (tuple, list)


class CudaTensor(torch.Tensor):
    """A tensor that reports `cuda:0`, or another GPU, as its device; `elem` has its values. For torch's C++ code, such
    as the autograd engine, it is on the CPU, since a CPU build of torch does not support another device."""

    elem: torch.Tensor
    device, is_cuda = CUDA, True  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, elem: torch.Tensor, device: torch.device = CUDA) -> "CudaTensor":
        if torch.is_inference_mode_enabled():  # for a view of a tensor from outside of it
            with torch.inference_mode(False):
                return cls.__new__(cls, elem, device)
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            layout=elem.layout,
            device=elem.device,
        )
        wrapper.elem, wrapper.device = elem, device
        return wrapper

    def __repr__(self) -> str:  # type: ignore[override]
        return f"CudaTensor({self.elem})"

    def data_ptr(self) -> int:
        return self.elem.data_ptr()

    def __tensor_flatten__(self) -> tuple[list[str], torch.device]:
        """Makes `Module.to` swap a parameter's tensor, so that tied weights stay tied, as on a GPU."""
        return ["elem"], self.device

    @staticmethod
    def __tensor_unflatten__(tensors: dict[str, torch.Tensor], device: torch.device, *_: Any) -> "CudaTensor":
        return CudaTensor(tensors["elem"], device)

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _active().run(operation, args, kwargs or {})


class EmulatedCuda(TorchDispatchMode):
    """Runs operations on `cuda:0` and other GPUs. `launches` and `synchronizations` count them by name."""

    def __init__(self) -> None:
        super().__init__()
        self.launches, self.synchronizations = Counter[str](), Counter[str]()
        self.paused = self.to_host = False
        self.capturing: EmulatedGraph | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, so torch need not wrap each operation to prevent it."""
        return False

    def synchronize(self, name: str) -> None:
        if self.capturing is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        self.synchronizations[name] += 1

    def reset(self) -> None:
        self.launches.clear()
        self.synchronizations.clear()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.run(operation, args, kwargs or {})

    def run(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute an operation on the wrapped tensors; wrap its result if it is on the emulated device."""
        if _is_composite(operation):
            with self:
                decomposed = operation.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        name = operation.overloadpacket.__name__
        tensors = _tensors((*args, *kwargs.values()))
        owner = next((tensor.device for tensor in tensors if isinstance(tensor, CudaTensor)), None)
        on_device, requested = owner is not None, kwargs.get("device")
        to = None if requested is None else torch.device(requested).type
        device = _numbered(requested) if to == "cuda" else owner
        if on_device and to == "cpu" and not self.to_host:  # C++ code, for which the tensor is on the CPU
            to = "cuda"
        _check(name, operation, tensors, args, owner)
        self._count(operation, args, kwargs, on_device, to)
        if to == "cuda":
            kwargs = {**kwargs, "device": "cpu"}
        unwrapped = (_map(_unwrap, args), _map(_unwrap, kwargs)) if on_device else (args, kwargs)
        result = self._computed(operation, *unwrapped)
        to_host = name == "_to_copy" and to == "cpu"
        if to_host or name == TO_HOST or not (on_device or to == "cuda"):
            return result
        if name == "copy_" and not isinstance(args[0], CudaTensor):
            return args[0]
        wrapped = _map(partial(_wrap, device), result)
        return return_and_correct_aliasing(operation, args, kwargs, wrapped) if _has_aliases(operation) else wrapped

    def _computed(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = operation(*args, **kwargs)
        if self.capturing is not None and not operation.is_view:
            self.capturing.operations.append((operation, args, kwargs, result))
        return result

    def _count(
        self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on_device: bool, to: str | None
    ) -> None:
        if self.paused or not (on_device or to == "cuda"):
            return
        name = operation.overloadpacket.__name__
        if name not in NO_KERNEL and name != TO_HOST and not operation.is_view:
            self.launches[name] += 1
        has_size = name == "repeat_interleave" and kwargs.get("output_size") is not None
        if name == TO_HOST or (name in SYNCHRONIZING and not has_size):
            self.synchronize(name)
        if name in COPYING:
            source = args[1] if name == "copy_" else args[0]
            if isinstance(source, CudaTensor) and (to == "cpu" or not isinstance(args[0], CudaTensor)):
                self.synchronize("to the host")
            elif not isinstance(source, CudaTensor) and source.dim() and not _is_pinned(source):
                self.synchronize("from pageable memory")
        if name in INDEXING:
            masks = [index for index in args[1] if isinstance(index, torch.Tensor) and index.dtype == torch.bool]
            for _ in masks:
                self.synchronize("boolean index")


class _Functions(TorchFunctionMode):
    """Python functions that do not reach the dispatcher, or whose parts would count as several launches."""

    def __init__(self, device: EmulatedCuda):
        super().__init__()
        self.device = device

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        device, kwargs = self.device, kwargs or {}
        if function not in OWN and "generator" not in kwargs:
            return function(*args, **kwargs)
        if function in MAKING and _is_cuda(kwargs.get("device")):
            if isinstance(args[0], CudaTensor):
                return args[0]
            return function(*args, **{**kwargs, "device": "cpu"}).to(_numbered(kwargs["device"]))
        first = args[0] if args else None
        generator = kwargs.get("generator")
        if generator is not None and getattr(generator, "on_cuda", False) != (
            isinstance(first, CudaTensor) or _is_cuda(kwargs.get("device"))
        ):
            raise RuntimeError("Expected a generator on the device of the random numbers.")
        if function in MOVING:
            return self._move(first, function, args[1:], kwargs)
        if function is torch.Tensor.pin_memory:
            pinned = first.clone()
            _pinned[id(pinned)] = weakref.ref(pinned)
            return pinned
        if isinstance(first, CudaTensor):
            if function is torch.Tensor.tolist:
                device.synchronize("tolist")
                return first.elem.tolist()
            if function is torch.Tensor.numpy:
                raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy first.")
            if function in INDEXED:
                args = (first, self._index(args[1], first.device), *args[2:])
            if function in FUSED and not device.paused:
                device.launches[function.__name__] += 1
                with device_paused(device):
                    return function(*args, **kwargs)
        return function(*args, **kwargs)

    def _move(self, tensor: torch.Tensor, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """`to`, `cpu` and `cuda`. A tensor that is on the device already is not copied to it."""
        arguments = [*args, *kwargs.values()]
        devices = [each.device if isinstance(each, torch.Tensor) else each for each in arguments]
        devices = [_numbered(each) for each in devices if isinstance(each, str | torch.device)]
        default = {torch.Tensor.cpu: torch.device("cpu"), torch.Tensor.cuda: CUDA}.get(function, tensor.device)
        target = devices[0] if devices else default
        dtypes = [each.dtype if isinstance(each, torch.Tensor) else each for each in arguments]
        dtype = next((each for each in dtypes if isinstance(each, torch.dtype)), tensor.dtype)
        if target == tensor.device:
            return torch.Tensor.to(tensor, dtype, copy=kwargs.get("copy", False))
        self.device.to_host = target.type == "cpu"
        try:
            return torch.ops.aten._to_copy(tensor, dtype=dtype, device=target)
        finally:
            self.device.to_host = False

    def _index(self, index: Any, device: torch.device) -> Any:
        """The index with lists and CPU tensors copied to the device, as CUDA does."""
        if isinstance(index, tuple):
            return tuple(self._index(part, device) for part in index)
        if isinstance(index, list) or (isinstance(index, torch.Tensor) and not isinstance(index, CudaTensor)):
            return torch.as_tensor(index).to(device)
        return index


@contextmanager
def device_paused(device: EmulatedCuda) -> Iterator[None]:
    """Within the context, nothing is counted."""
    device.paused = True
    try:
        yield
    finally:
        device.paused = False


def _check(
    name: str, operation: Any, tensors: list[torch.Tensor], args: tuple[Any, ...], owner: torch.device | None
) -> None:
    """Raise RuntimeError for tensors of several devices, as CUDA does. `owner`: the GPU of the first one on a GPU."""
    if owner is None or name in COPYING:
        return
    if gpus := {str(t.device) for t in tensors if isinstance(t, CudaTensor) and t.device != owner}:
        raise RuntimeError(f"{operation}: expected all tensors on the same device, found {owner} and {gpus}")
    if name in INDEXING:
        if not isinstance(args[0], CudaTensor):
            raise RuntimeError(f"{operation}: indices should be on the same device as the indexed tensor (cpu)")
        tensors = [args[0], *args[2:3]] if len(args) > 2 else []
    others = [t for t in tensors if isinstance(t, torch.Tensor) and not isinstance(t, CudaTensor) and t.dim()]
    if others:
        shapes = ", ".join(str(tuple(t.shape)) for t in others)
        raise RuntimeError(f"{operation}: expected all tensors on the same device, found cuda:0 and cpu ({shapes})")


class _Generator(torch.Generator):
    """A generator that stores whether it is on the emulated device; its random numbers are those of the CPU."""

    on_cuda: bool

    def __new__(cls, device: Any = "cpu") -> "_Generator":
        generator = super().__new__(cls, "cpu")
        generator.on_cuda = _is_cuda(device)
        return generator

    def __init__(self, device: Any = "cpu"):
        super().__init__()


class EmulatedGraph:
    """Replaces `torch.cuda.CUDAGraph`: the captured operations with their tensors."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def replay(self) -> None:
        """Run all operations again; results are written to the storages of the capture. Counts as one launch."""
        device = _active()
        device.launches["graph"] += 1
        with torch.inference_mode(), torch.utils._python_dispatch._disable_current_modes():
            for operation, args, kwargs, result in self.operations:
                replayed = operation(*args, **kwargs)
                for old, new in zip(_tensors([result]), _tensors([replayed]), strict=True):
                    if old is not new and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class _Capture:
    """Replaces the context `torch.cuda.graph`."""

    def __init__(self, graph: EmulatedGraph, pool: Any, stream: Any, capture_error_mode: str):
        assert pool is not None and stream is not None and capture_error_mode == "thread_local"
        self.graph = graph

    def __enter__(self) -> None:
        _active().capturing = self.graph

    def __exit__(self, *_: object) -> None:
        _active().capturing = None


class _Stream:
    def __init__(self, *_: Any): ...

    def wait_stream(self, other: "_Stream") -> None: ...


class _Event:
    """Counts a wait for an event as a synchronization unless one came after it was recorded."""

    def __init__(self, enable_timing: bool = False):
        self.enable_timing = enable_timing

    def record(self, *_: Any) -> None:
        self.after = _active().synchronizations.total()
        self.at = time.perf_counter()

    def query(self) -> bool:
        return _active().synchronizations.total() > self.after

    def synchronize(self) -> None:
        _active().synchronize("event")

    def elapsed_time(self, end: "_Event") -> float:
        assert self.enable_timing and end.query(), "the end has not been reached"
        return (end.at - self.at) * 1e3


class _NoDevice:
    """Replaces the context `torch.cuda.device`."""

    def __init__(self, *_: Any): ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


_devices: list[EmulatedCuda] = []
_pinned: dict[int, weakref.ref[torch.Tensor]] = {}
"""Tensors in pinned memory by id."""


def _is_pinned(tensor: torch.Tensor) -> bool:
    reference = _pinned.get(id(tensor))
    return reference is not None and reference() is tensor


def _active() -> EmulatedCuda:
    if not _devices:
        raise RuntimeError("a tensor of the emulated CUDA device is used after the emulation ended")
    return _devices[-1]


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


@cache
def _is_composite(operation: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), "CompositeImplicitAutograd")


@cache
def _has_aliases(operation: Any) -> bool:
    """Whether it is a view or writes to an argument."""
    schema = operation._schema
    return any(each.alias_info is not None for each in (*schema.arguments, *schema.returns))


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """All tensors among the values and in their tuples and lists; faster than torch's trees."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, SEQUENCES):
            found += _tensors(value)
    return found


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, SEQUENCES):
        return type(value)([_map(function, part) for part in value])
    if isinstance(value, dict):
        return {key: _map(function, part) for key, part in value.items()}
    return function(value)


def _unwrap(value: Any) -> Any:
    return value.elem if isinstance(value, CudaTensor) else value


def _wrap(device: torch.device, value: Any) -> Any:
    return CudaTensor(value, device) if isinstance(value, torch.Tensor) and not isinstance(value, CudaTensor) else value


def _numbered(device: Any) -> torch.device:
    """`cuda` is `cuda:0`."""
    return CUDA if torch.device(device) == torch.device("cuda") else torch.device(device)


@contextmanager
def emulated_cuda(count: int = 1) -> Iterator[EmulatedCuda]:
    """Within the context, `cuda` and `cuda:0` are an emulated device, and `cuda:1` another if `count` is 2."""
    device = EmulatedCuda()

    def synchronize(*_: Any) -> None:
        device.synchronize("synchronize")

    with pytest.MonkeyPatch.context() as patch:
        cuda: dict[str, Any] = {
            "is_available": lambda: True,
            "device_count": lambda: count,
            "current_device": lambda: 0,
            "device": _NoDevice,
            "set_device": lambda *_: None,
            "synchronize": synchronize,
            "is_bf16_supported": lambda *_, **__: True,
            "get_device_name": lambda *_: "emulated",
            "get_device_capability": lambda *_: (9, 0),
            "empty_cache": lambda: None,
            "max_memory_allocated": lambda *_: 0,
            "manual_seed_all": lambda *_: None,
            "_lazy_init": lambda: None,
            "CUDAGraph": EmulatedGraph,
            "graph": _Capture,
            "graph_pool_handle": lambda: (0, 0),
            "memory_reserved": lambda *_: 0,
            "Stream": _Stream,
            "stream": _NoDevice,
            "current_stream": lambda *_: _Stream(),
            "Event": _Event,
        }
        for name, value in cuda.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch, "Generator", _Generator)
        patch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # other threads are not emulated
        patch.setattr("transformers.modeling_utils.caching_allocator_warmup", lambda *_: None)
        _devices.append(device)
        try:
            with _Functions(device), device:
                yield device
        finally:
            _devices.pop()
