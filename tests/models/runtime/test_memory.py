"""Pages given back: the memory goes, the values stay, and what was changed is left alone."""

import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.runtime.linear import _are_clean_file_pages, release_pages

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages are given back on Linux only")


def resident_kb():
    import psutil

    return psutil.Process().memory_info().rss // 1024


@pytest.fixture
def mapped(tmp_path):
    """Two weights of 32 MiB in a mapped file, all of it read."""
    wanted = {name: torch.randn(8192, 1024) for name in ("a", "b")}
    save_file(wanted, tmp_path / "w.safetensors")
    found = load_file(tmp_path / "w.safetensors")
    assert all(torch.equal(found[name], wanted[name]) for name in found)
    return found, wanted


def test_a_mapped_weight_leaves_memory_and_reads_the_same_again(mapped):
    found, wanted = mapped
    before = resident_kb()
    assert release_pages(found["a"])
    assert before - resident_kb() > 24_000
    assert torch.equal(found["a"], wanted["a"]) and torch.equal(found["b"], wanted["b"])


def test_a_changed_weight_stays_as_it_was_changed(mapped):
    found, _ = mapped
    found["a"][1000] = 7.0
    assert not release_pages(found["a"])
    assert (found["a"][1000] == 7.0).all()


def test_memory_of_no_file_is_left_alone():
    weight = torch.randn(2048, 1024)
    copy = weight.clone()
    assert not release_pages(weight) and torch.equal(weight, copy)
    assert not release_pages(torch.zeros(3)) and not release_pages(torch.empty(2048, 1024, device="meta"))
    assert not _are_clean_file_pages(0, 4)
