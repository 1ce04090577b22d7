"""Out-of-memory and full-disk errors as libraries really raise them."""

import errno
import os
import resource
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from speculoos.faults import disk_full, mentions_no_memory, out_of_memory


def raised(function) -> Exception:
    try:
        function()
    except Exception as error:
        return error
    pytest.fail("nothing was raised")


@pytest.mark.parametrize(
    "allocate", [lambda: bytearray(1 << 62), lambda: torch.empty(1 << 60)], ids=["python", "torch"]
)
def test_no_memory_is_recognized(allocate) -> None:
    error = raised(allocate)
    assert out_of_memory(error) and not disk_full(error)


@pytest.mark.parametrize(
    "write",
    [lambda path: path.write_bytes(bytes(100_000)), lambda path: save_file({"a": torch.zeros(100_000)}, str(path))],
    ids=["python", "safetensors"],
)
def test_a_file_that_may_not_grow_is_recognized(write, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        error = raised(lambda: write(tmp_path / "file"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert disk_full(error) and not out_of_memory(error)


def test_a_full_disk_and_a_quota_are_recognized() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT):
        assert disk_full(OSError(number, os.strerror(number)))
    assert disk_full(RuntimeError("I/O error: No space left on device (os error 28)")), "as safetensors says it"


@pytest.mark.parametrize(
    "text",
    [
        "libtorch_cpu.so: failed to map segment from shared object",
        "unable to mmap 331895112 bytes from file <model.safetensors>: Cannot allocate memory (12)",
        "OpenBLAS error: Memory allocation still failed after 10 retries, giving up.",
        "what():  std::bad_alloc",
        "CUDA out of memory. Tried to allocate 20.00 MiB",
    ],
)
def test_messages_about_memory_are_recognized(text: str) -> None:
    assert mentions_no_memory(text) and out_of_memory(RuntimeError(text))


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "No such file"), ValueError("no such kernel"), KeyError("a")])
def test_other_errors_are_neither(error: Exception) -> None:
    assert not out_of_memory(error) and not disk_full(error)
