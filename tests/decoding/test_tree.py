"""Tree shapes: masks written out, Medusa choices in both spellings, paths and clipping."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.tree import DraftTree, TreeShape, chain_shape, shape_from_choices
from speculoos.errors import BadInput

PATHS_ONLY = [[0, 0, 0, 0], [0, 1, 0], [1, 0], [1, 1]]
ALL_NODES = [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0], [0, 1], [0, 1, 0], [1], [1, 0], [1, 1]]


def test_paths_only_and_all_nodes_name_the_same_tree_of_ten():
    shape = shape_from_choices(PATHS_ONLY)
    assert shape == shape_from_choices(ALL_NODES) == shape_from_choices(reversed(ALL_NODES))
    assert len(shape) == 10
    assert shape.parents == (-1, 0, 0, 1, 1, 2, 2, 3, 4, 7)
    assert shape.ranks == (0, 0, 1, 0, 1, 0, 1, 0, 0, 0)


def test_a_node_sees_itself_and_its_ancestors_only():
    shape = TreeShape((-1, 0, 0, 1, 3))
    assert shape.mask.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]
    assert shape.depths == (0, 1, 1, 2, 3)
    assert shape.paths == ((2,), (1, 3, 4))
    assert shape.children == ((1, 2), (3,), (), (4,), ())


def test_a_chain_is_a_tree_of_width_one_with_a_causal_mask():
    shape = chain_shape(4)
    assert shape.is_chain and len(shape) == 5 and shape.max_depth == 4
    assert torch.equal(shape.mask, torch.ones(5, 5, dtype=torch.bool).tril())


def test_choices_may_skip_candidates():
    shape = shape_from_choices([[2], [2, 1]])
    assert shape.parents == (-1, 0, 1) and shape.ranks == (0, 2, 1)


@pytest.mark.parametrize("choices", [[[]], [[0, -1]], [["0"]], [[True]], [[0.5]]])
def test_bad_choices_are_refused_with_the_choice(choices):
    with pytest.raises(BadInput, match="Tree choice"):
        shape_from_choices(choices)


def test_a_clipped_tree_keeps_its_first_nodes_and_their_parents():
    tree = DraftTree(tuple(range(10)), shape_from_choices(PATHS_ONLY), tuple(map(float, range(10))))
    clipped = tree.clipped(4)
    assert clipped.tokens == (0, 1, 2, 3) and clipped.shape.parents == (-1, 0, 0, 1) and len(clipped.logprobs) == 4
    assert tree.clipped(10) is tree


@st.composite
def shapes(draw):
    count = draw(st.integers(1, 20))
    return TreeShape((-1, *(draw(st.integers(0, i)) for i in range(count))))


@given(shapes())
def test_paths_masks_and_depths_agree(shape):
    for node in range(len(shape)):
        ancestors = {0, *shape.path(node)}
        assert set(shape.mask[node].nonzero()[:, 0].tolist()) == ancestors
        assert shape.depths[node] == len(ancestors) - 1
