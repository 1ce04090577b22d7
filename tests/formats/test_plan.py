"""Tensors are streamed into a file that safetensors reads."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from formats.plan import TensorSource, cast, constant, from_entry, widen, write_tensors
from models.identity import tensors_of
from speculoos.errors import Damaged


def write(path, tensors):
    write_tensors(path, tensors, lambda _: None)


@pytest.fixture
def stored(tmp_path):
    torch.manual_seed(0)
    tensors = {
        "odd": torch.randint(0, 2, (7,), dtype=torch.bool),
        "ids": torch.randint(-9, 9, (5,)),
        "half": torch.randn(3, 5).bfloat16(),
        "whole": torch.randn(700, 1000),
        "one": torch.tensor(3.5),
        "none": torch.zeros(0, 4),
    }
    save_file(tensors, tmp_path / "stored.safetensors")
    return tensors, {entry.name: entry for entry in tensors_of(tmp_path / "stored.safetensors")}


def test_the_library_reads_what_was_streamed(stored, tmp_path):
    tensors, entries = stored
    write_tensors(
        tmp_path / "out.safetensors",
        [from_entry(entry, f"new.{name}") for name, entry in entries.items()],
        lambda _: None,
    )
    loaded = load_file(tmp_path / "out.safetensors")
    assert {*loaded} == {f"new.{name}" for name in tensors}
    assert all(torch.equal(loaded[f"new.{name}"], value) for name, value in tensors.items())
    with safe_open(tmp_path / "out.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    for entry in tensors_of(tmp_path / "out.safetensors"):
        assert entry.start % {"I64": 8, "F32": 4, "BF16": 2, "BOOL": 1}[entry.dtype] == 0, "a mapping may read it"


def test_a_cast_rounds_as_torch_does(stored, tmp_path):
    tensors, entries = stored
    sources = [cast("down", (700, 1000), "BF16", lambda: tensors["whole"]), widen(from_entry(entries["half"]), "F32")]
    write(tmp_path / "out.safetensors", sources)
    loaded = load_file(tmp_path / "out.safetensors")
    assert torch.equal(loaded["down"], tensors["whole"].bfloat16())
    assert torch.equal(loaded["half"], tensors["half"].float())


def test_a_source_that_is_too_short_is_reported(tmp_path):
    with pytest.raises(Damaged, match="4 of 8 bytes"):
        write_tensors(
            tmp_path / "out",
            [TensorSource("x", "F32", (2,), constant("x", "F32", (1,), b"1234").chunks)],
            lambda _: None,
        )
