"""Releasing pages of a mapped file frees memory and keeps the values; changed pages are not released."""

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
    """Two weights of 32 MiB in a mapped file that was read completely, and their expected values."""
    expected = {name: torch.randn(8192, 1024) for name in ("a", "b")}
    save_file(expected, tmp_path / "w.safetensors")
    loaded = load_file(tmp_path / "w.safetensors")
    assert all(torch.equal(loaded[name], expected[name]) for name in loaded)
    return loaded, expected


def test_a_mapped_weight_leaves_memory_and_reads_the_same_again(mapped):
    loaded, expected = mapped
    before = resident_kb()
    assert release_pages(loaded["a"])
    assert before - resident_kb() > 24_000
    assert torch.equal(loaded["a"], expected["a"]) and torch.equal(loaded["b"], expected["b"])


def test_a_changed_weight_stays_as_it_was_changed(mapped):
    loaded, _ = mapped
    loaded["a"][1000] = 7.0
    assert not release_pages(loaded["a"])
    assert (loaded["a"][1000] == 7.0).all()


def test_memory_of_no_file_is_left_alone():
    weight = torch.randn(2048, 1024)
    copy = weight.clone()
    assert not release_pages(weight) and torch.equal(weight, copy)
    assert not release_pages(torch.zeros(3)) and not release_pages(torch.empty(2048, 1024, device="meta"))
    assert not _are_clean_file_pages(0, 4)
