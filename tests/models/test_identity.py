"""A model's identity is its tensors, not its files."""

import json
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from models.identity import chat_template, tensors, tokenizer_sha256, weights_sha256
from speculoos.errors import BadInput


def test_resharding_and_metadata_do_not_change_the_identity(tiny_base: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert weights_sha256(tmp_path) == weights_sha256(tiny_base)


@pytest.mark.parametrize("change", ["value", "dtype", "name", "shape"])
def test_any_change_of_a_tensor_changes_the_identity(tiny_base: Path, tmp_path: Path, change: str) -> None:
    state = load_file(tiny_base / "model.safetensors")
    name = "model.norm.weight"
    if change == "value":
        state[name][0] += 1e-6
    elif change == "dtype":
        state[name] = state[name].to(torch.float64)
    elif change == "name":
        state["model.norm2.weight"] = state.pop(name)
    else:
        state[name] = state[name][None]
    save_file(state, tmp_path / "model.safetensors")
    assert weights_sha256(tmp_path) != weights_sha256(tiny_base)


def test_a_shard_that_is_missing_is_named(tiny_base: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(tiny_base).save_pretrained(tmp_path, max_shard_size="50KB")
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(BadInput, match=lost.name):
        tensors(tmp_path)


def test_an_index_may_not_point_outside_its_folder(tiny_base: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    shutil.copy(tiny_base / "model.safetensors", tmp_path / "out.safetensors")
    index = {"weight_map": {"a": "../out.safetensors"}}
    (tmp_path / "in" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadInput):
        tensors(tmp_path / "in")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"abc",
        struct.pack("<Q", 1 << 40) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"{x",
        struct.pack("<Q", 60) + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'.ljust(60),
    ],
    ids=["empty", "short", "huge header", "not an object", "broken", "offsets past the end"],
)
def test_a_damaged_file_is_reported_in_one_sentence(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(BadInput, match="model.safetensors"):
        tensors(tmp_path)


def test_the_chat_template_belongs_to_the_tokenizers_identity(tiny_base: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_base, tmp_path / "copy")
    assert tokenizer_sha256(folder) == tokenizer_sha256(tiny_base)
    (folder / "chat_template.jinja").write_text(chat_template(tiny_base) + " ")
    assert tokenizer_sha256(folder) != tokenizer_sha256(tiny_base)
    assert tokenizer_sha256(tmp_path) == ""
