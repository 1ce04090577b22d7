"""The cache: logits after a commit equal logits of a fresh prefill, for any tree, path and family."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decoding.target import Target
from decoding.tree import DraftTree, TreeShape
from models.runtime.cache import KVCache
from speculoos.errors import BadInput, Unavailable, Unsupported

FEW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def trees_and_nodes(draw):
    """Three random trees in a row, and the last accepted node of each."""
    trees = []
    for _ in range(3):
        count = draw(st.integers(0, 9))
        parents = (-1, *(draw(st.integers(0, i)) for i in range(count)))
        trees.append((parents, draw(st.integers(0, count))))
    return trees


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2-mixed", "phi3", "generic"])
@FEW
@given(trees_and_nodes(), st.integers(0, 2**31))
def test_logits_after_commits_equal_a_fresh_prefill(family, base_of, trees, seed):
    base = base_of(family)
    generator = torch.Generator().manual_seed(seed)

    def tokens(count):
        return torch.randint(base.vocab_size, (count,), generator=generator).tolist()

    target, fresh = Target(base, 96), Target(base, 96)
    text = tokens(14)
    target.prefill(text)
    for parents, node in trees:
        tree = DraftTree(tuple(tokens(len(parents))), TreeShape(parents))
        output = target.forward_tree(tree)
        accepted = (0, *tree.shape.path(node))
        target.commit(tree, accepted)
        target.cache.check_integrity()
        text += [tree.tokens[n] for n in accepted]
        fresh.rewind(0)
        expected = fresh.prefill(text).logits[-1]
        torch.testing.assert_close(output.logits[node], expected, atol=5e-5, rtol=1e-4)
    assert target.ids == text
    end = target.extend(tokens(1)).logits[-1]
    torch.testing.assert_close(end, fresh.extend(target.ids[-1:]).logits[-1], atol=5e-5, rtol=1e-4)


def rows(start, count):
    """[1 head-batch, 2 heads, count, 1]: row i holds its own number."""
    return torch.arange(start, start + count, dtype=torch.float32).view(1, 1, count, 1).expand(1, 2, count, 1)


def stage(cache, start, count):
    for layer in range(cache.num_layers):
        cache.write(layer, rows(start, count), -rows(start, count))
    cache.stage(count)


def committed_rows(cache):
    assert torch.equal(cache.keys[:, :, :, : cache.length], -cache.values[:, :, :, : cache.length])
    return cache.keys[1, 0, 1, : cache.length, 0].tolist()


def test_commit_keeps_the_chosen_rows_in_order_and_forgets_the_rest():
    cache = KVCache(2, 16)
    stage(cache, 0, 3)
    cache.commit([0, 1, 2])
    stage(cache, 10, 5)
    assert cache.free_rows == 13
    cache.commit([0, 2, 4])
    assert committed_rows(cache) == [0, 1, 2, 10, 12, 14]
    stage(cache, 20, 2)
    cache.commit([0])
    assert committed_rows(cache) == [0, 1, 2, 10, 12, 14, 20]
    cache.crop(2)
    assert committed_rows(cache) == [0, 1] and cache.staged == [0]


def test_writing_returns_views_of_all_rows_used_and_commits_nothing():
    cache = KVCache(1, 8)
    stage(cache, 0, 2)
    cache.commit([0, 1])
    keys, values = cache.write(0, rows(5, 3), rows(5, 3))
    assert keys.shape == values.shape == (1, 2, 5, 1) and keys[0, 0, :, 0].tolist() == [0, 1, 5, 6, 7]
    assert cache.length == 2


def test_a_full_cache_and_uneven_layers_are_refused():
    cache = KVCache(1, 2)
    with pytest.raises(Unavailable, match="holds 2 tokens"):
        cache.write(0, rows(0, 3), rows(0, 3))
    cache.write(0, rows(0, 1), rows(0, 1))
    with pytest.raises(Unsupported, match="key heads"):
        cache.write(0, rows(0, 1)[:, :1], rows(0, 1)[:, :1])


@pytest.mark.parametrize("chosen", [[1, 0], [0, 3]])
def test_rows_that_are_not_a_path_fail_loudly(chosen):
    cache = KVCache(1, 8)
    stage(cache, 0, 3)
    with pytest.raises(AssertionError):
        cache.commit(chosen)


def test_integrity_check_sees_rows_that_are_not_finite():
    cache = KVCache(1, 8)
    stage(cache, 0, 3)
    cache.commit([0, 1, 2])
    cache.check_integrity()
    cache.values[0, 0, 0, 1] = torch.nan
    with pytest.raises(AssertionError):
        cache.check_integrity()


@pytest.mark.parametrize(
    ("ids", "message"), [([], "no tokens"), ([1] * 40, "has 40 tokens"), ([99999], "token id outside")]
)
def test_prompts_that_cannot_be_decoded_are_refused_in_one_sentence(base, ids, message):
    with pytest.raises(BadInput, match=message):
        Target(base, 32).prefill(ids)
