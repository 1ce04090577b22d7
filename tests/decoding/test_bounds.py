"""Limits of drafter options: no request can fill the memory or make a step take minutes."""

import pytest

from decoding.drafters.eagle import GPU_TREE
from decoding.drafters.expansion import DynamicTree
from decoding.drafters.ngram import NgramDrafter
from models.methods import METHODS, trees
from speculoos.errors import BadInput


@pytest.mark.parametrize("options", [{"max_ngram": 256}, {"depth": 256}, {"depth": 32, "width": 256}])
def test_prompt_lookup_is_bounded(options: dict[str, int]) -> None:
    with pytest.raises(BadInput, match="at most"):
        NgramDrafter(**options)
    NgramDrafter(depth=32, width=32, max_ngram=16)


@pytest.mark.parametrize(("depth", "top_k"), [(33, 1), (256, 256), (7, 97)])
def test_a_dynamic_tree_is_bounded(depth: int, top_k: int) -> None:
    with pytest.raises(BadInput, match="at most"):
        DynamicTree(depth=depth, top_k=top_k)
    assert DynamicTree(depth=GPU_TREE.depth, top_k=GPU_TREE.top_k) == GPU_TREE


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if "depth" in method.drafting])
def test_a_chain_is_bounded(method: str) -> None:
    with pytest.raises(BadInput, match="depth: expected a whole number of at most 32"):
        trees.check_options(method, {"depth": 33}, METHODS[method].drafting)
    trees.check_options(method, {"depth": 32}, METHODS[method].drafting)
