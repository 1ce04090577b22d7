"""A draft network with a cache: neither the cache nor a tree mask changes what the network computes."""

import pytest
import torch

from models.base import load_base
from models.chain_attention import ChainBackend
from models.eagle import EagleDraft
from models.eagle3 import Eagle3Draft
from models.runtime.cache import CacheBackend, KVCache


@pytest.fixture(scope="module")
def base(tiny_base):
    return load_base(tiny_base)


def draft_of(method, base):
    torch.manual_seed(3)
    if method == "eagle":
        return EagleDraft.from_base(base, eagle_num_layers=2, use_last_layernorm=True)
    return Eagle3Draft.from_base(base, torch.arange(5, 105))


def new_cache(draft):
    return KVCache(len(draft.layers), 1000, grows=True)


def forward_and_commit(draft, features, ids, positions, cache, mask=None):
    """One forward; the cache keeps its rows."""
    out = draft(features, ids, positions, CacheBackend(cache, mask))
    cache.stage(features.shape[1])
    cache.commit_all()
    return out


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
@torch.no_grad()
def test_drafting_with_a_cache_equals_the_whole_row(method, base):
    draft = draft_of(method, base)
    ids, positions = torch.randint(0, 300, (1, 20)), torch.arange(20)[None]
    features = torch.randn(1, 20, base.hidden_size)
    whole = draft(features, ids, positions)
    cache, parts = new_cache(draft), []
    for start, end in ((0, 9), (9, 10), (10, 17)):
        parts.append(
            forward_and_commit(draft, features[:, start:end], ids[:, start:end], positions[:, start:end], cache)
        )
    cache.crop(12)
    parts = [
        torch.cat(parts, 1)[:, :12],
        forward_and_commit(draft, features[:, 12:], ids[:, 12:], positions[:, 12:], cache),
    ]
    assert cache.length == 20
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
@torch.no_grad()
def test_each_path_of_a_tree_equals_its_own_chain(method, base):
    """Context of 5, then nodes 0, 1 (siblings) and 2 (child of 0), 3 (child of 1) in one forward."""
    draft = draft_of(method, base)
    ids, features = torch.randint(0, 300, (1, 9)), torch.randn(1, 9, base.hidden_size)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 5, 6, 6]])
    cache = new_cache(draft)
    forward_and_commit(draft, features[:, :5], ids[:, :5], positions[:, :5], cache)
    sees = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]], dtype=torch.bool)
    mask = torch.cat([torch.ones(4, 5, dtype=torch.bool), sees], 1)
    tree = forward_and_commit(draft, features[:, 5:], ids[:, 5:], positions[:, 5:], cache, mask)
    for path in ([5, 7], [6, 8]):
        rows = [0, 1, 2, 3, 4, *path]
        chain = draft(features[:, rows], ids[:, rows], positions[:, rows])
        assert torch.allclose(tree[:, [p - 5 for p in path]], chain[:, 5:], atol=1e-5)


@torch.no_grad()
def test_training_time_test_sees_what_a_drafted_chain_sees(base):
    """Three steps over a whole row equal, at each position t, a prefill of 0…t and two drafted steps from t."""
    draft, steps, n = draft_of("eagle3", base), 3, 8
    ids, features = torch.randint(0, 300, (1, n + steps)), torch.randn(1, n, base.hidden_size)
    backend, x, unrolled = ChainBackend(), features, []
    for j in range(steps):
        x = draft(x, ids[:, j : j + n], torch.arange(n)[None] + j, backend)
        unrolled.append(x)
    for t in range(n):
        cache = new_cache(draft)
        g = forward_and_commit(draft, features[:, : t + 1], ids[:, : t + 1], torch.arange(t + 1)[None], cache)[:, -1:]
        for j in range(steps):
            assert torch.allclose(g[0, 0], unrolled[j][0, t], atol=1e-5)
            g = forward_and_commit(draft, g, ids[:, t + j + 1 : t + j + 2], torch.tensor([[t + j + 1]]), cache)
