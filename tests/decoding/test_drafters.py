"""Proposals of drafters: tree growth against brute force, EAGLE's cache against recomputing everything."""

import itertools

import pytest
import torch

from decoding.drafters import make_drafter
from decoding.drafters.base import ChildSampling, PrefillContext
from decoding.drafters.eagle import CPU_TREE, GPU_TREE
from decoding.drafters.expansion import DynamicTree, StaticTree
from decoding.drafters.medusa import MedusaDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.generate import seeded_generator
from decoding.sampling import LogitsWarper
from decoding.target import Target
from decoding.tree import shape_from_choices
from models.dflash import DFlashDraft
from models.eagle import EagleDraft
from models.eagle3 import Eagle3Draft
from models.medusa import MedusaConfig, MedusaHeads
from models.peagle import PEagleDraft
from models.runtime.interface import ForwardOutput
from models.standalone import StandaloneDraft
from speculoos.errors import BadInput
from tests.decoding.conftest import greedy, ids_of, run
from tests.decoding.replay import ReplayDrafter

TREE = shape_from_choices([[0, 0, 0, 0], [0, 1, 0], [1, 0], [1, 1]])
VOCAB = 7


class ToyExpander:
    """Logits that depend on the whole path, so that a wrong parent is noticed. Draft id i is token 2 i + 1."""

    def __init__(self, seed=0):
        self.seed = seed

    def logits(self, path):
        number = hash((self.seed, *path)) % (2**31)
        return 2 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(number))

    def root(self):
        self.paths = [(5,)]
        return self.logits(self.paths[0])[None]

    def add(self, ids, parents):
        new = [(*self.paths[parent], token) for token, parent in zip(ids.tolist(), parents.tolist(), strict=True)]
        self.paths += new
        return torch.stack([self.logits(path) for path in new])

    def token_ids(self, choices):
        return 2 * choices + 1


def grow_tree(growth, toy, sampling=None):
    """The tree grown below token 5."""
    uniforms = () if sampling is None else (sampling.uniforms(growth.nodes - 1),)
    return growth.tree(5, growth.grow(toy, sampling, *uniforms))


def grow_static(shape, toy, sampling=None):
    return grow_tree(StaticTree(shape, torch.device("cpu")), toy, sampling)


def path_tokens(tree, node):
    return tuple(tree.tokens[n] for n in (0, *tree.shape.path(node)))


def test_a_static_tree_holds_the_drafts_best_tokens_after_each_path():
    toy = ToyExpander()
    tree = grow_static(TREE, toy)
    for node in range(1, len(TREE)):
        logprobs = toy.logits(path_tokens(tree, TREE.parents[node])).log_softmax(-1)
        best = int(logprobs.argsort(descending=True)[TREE.ranks[node]])
        assert tree.tokens[node] == 2 * best + 1
        assert tree.logprobs[node] == pytest.approx(float(logprobs[best]), abs=1e-5)
    assert tree.shape is TREE and not tree.proposals


def test_sampled_children_differ_come_with_their_distribution_and_follow_it():
    toy, warp = ToyExpander(), LogitsWarper(0.8, top_p=0.95)
    sampling = ChildSampling(warp, 2 * VOCAB + 1, seeded_generator(3))
    first = torch.zeros(2 * VOCAB + 1)
    for _ in range(400):
        tree = grow_static(TREE, toy, sampling)
        first[tree.tokens[1]] += 1
        for node, q in tree.proposals.items():
            expected = torch.zeros(2 * VOCAB + 1, dtype=torch.float64)
            expected[1::2] = warp(toy.logits(path_tokens(tree, node)))
            torch.testing.assert_close(q, expected)
            drawn = [tree.tokens[c] for c in tree.shape.children[node]]
            assert len(set(drawn)) == len(drawn) and all(q[t] > 0 for t in drawn)
    q = torch.zeros(2 * VOCAB + 1, dtype=torch.float64)
    q[1::2] = warp(toy.logits((5,)))
    assert (first / first.sum() - q).abs().max() < 0.07


def test_where_the_mass_ends_fewer_children_are_drawn_and_their_descendants_are_left_out():
    shape = shape_from_choices([[0], [1], [2, 0], [2, 1]])
    sampling = ChildSampling(LogitsWarper(1.0, top_k=2), 2 * VOCAB + 1, seeded_generator(0))
    tree = grow_static(shape, ToyExpander(), sampling)
    assert len(tree) == 3 and tree.shape.parents == (-1, 0, 0) and set(tree.proposals) == {0}


@pytest.mark.parametrize(("depth", "top_k", "nodes"), [(0, 3, 4), (2, 3, 8), (3, 2, 6), (7, 7, 60), (2, 1, 4)])
def test_a_dynamic_tree_is_the_best_nodes_of_a_beam_and_hangs_together(depth, top_k, nodes):
    toy = ToyExpander(seed=depth)
    tree = grow_tree(DynamicTree(depth, top_k, nodes), toy)
    frontier, output = [((5,), 0.0)], {}
    for _ in range(depth + 1):  # a beam written out: all children of the top_k best paths of the level before
        level = {}
        for path, score in frontier:
            logprobs = toy.logits(path).log_softmax(-1)
            for i in logprobs.topk(min(top_k, VOCAB)).indices.tolist():
                level[(*path, 2 * i + 1)] = score + float(logprobs[i])
        output |= level
        frontier = sorted(level.items(), key=lambda item: -item[1])[:top_k]
    expected = {(5,)} | set(sorted(output, key=lambda path: -output[path])[: nodes - 1])
    assert {path_tokens(tree, node) for node in range(len(tree))} == expected
    assert tree.shape.max_depth <= depth + 1
    for node, siblings in enumerate(tree.shape.children):
        values = [tree.logprobs[c] for c in siblings]
        assert values == sorted(values, reverse=True), (node, "siblings come best first")


def test_the_references_defaults_are_seven_expansions_of_ten_and_sixty_nodes():
    assert (GPU_TREE.depth, GPU_TREE.top_k, GPU_TREE.nodes) == (7, 10, 60)
    calls = []
    toy = ToyExpander()
    add = toy.add
    toy.add = lambda tokens, parents: calls.append(len(tokens)) or add(tokens, parents)
    tree = grow_tree(DynamicTree(7, 7, 60), toy)
    assert calls == [7] * 7 and len(tree) == 60 and tree.shape.max_depth <= 8
    assert CPU_TREE.nodes == 8


class CheckedDrafter:
    """An EAGLE drafter. Each proposal is compared with one that is recomputed from the whole text."""

    def __init__(self, drafter, base, prompt):
        self.drafter, self.base, self.draft = drafter, base, drafter.draft.draft
        self.ids, self.checks = list(prompt), 0

    def __getattr__(self, name):
        return getattr(self.drafter, name)

    def prefill(self, start):
        self.ids = [*start.prompt_ids, start.token]
        self.drafter.prefill(start)

    def update(self, tokens, target_output, nodes):
        self.ids += tokens
        self.drafter.update(tokens, target_output, nodes)

    def propose(self, token):
        tree = self.drafter.propose(token)
        assert self.ids[-1] == token
        hidden, aux = self.base.forward_hidden(torch.tensor([self.ids[:-1]]), layers=self.draft.layers_wanted)
        fused = self.draft.fuse(hidden, aux)
        for path in tree.shape.paths:
            features, tokens = fused, self.ids[1:]
            for node in path:
                positions = torch.arange(features.shape[1])[None]
                out = self.draft(features, torch.tensor([tokens]), positions)[:, -1:]
                logprobs = self.draft.logits(out)[0, 0].log_softmax(-1)
                draft_id = (self.draft.to_target(torch.arange(len(logprobs))) == tree.tokens[node]).nonzero().item()
                assert tree.logprobs[node] == pytest.approx(float(logprobs[draft_id]), abs=1e-4)
                features, tokens = torch.cat([features, out], dim=1), [*tokens, tree.tokens[node]]
                self.checks += 1
        return tree


@pytest.mark.parametrize("options", [{"tree": [[0, 0, 0], [0, 1], [1, 0]]}, {"depth": 2, "top_k": 3, "nodes": 9}])
@pytest.mark.parametrize("kind", [EagleDraft, Eagle3Draft])
@torch.inference_mode()
def test_eagles_cache_and_trees_equal_recomputing_everything(kind, options, base):
    torch.manual_seed(1)
    prompt = ids_of(base, "the quick brown fox")
    recorded = greedy(base, prompt, 24)[0]
    target = Target(base, 96)
    checked = CheckedDrafter(make_drafter(target, kind.from_base(base), options), base, prompt)
    proposals = ReplayDrafter(recorded, 3, base.vocab_size)  # right ones, so that several nodes are committed a step

    class Both:
        """Proposes the recorded tokens, and has EAGLE draft as well."""

        name, kind, layers, max_reusable_prefix = "both", "verify", checked.layers, checked.max_reusable_prefix

        def prefill(self, *args):
            checked.prefill(*args)
            proposals.prefill(*args)

        def update(self, *args):
            checked.update(*args)
            proposals.update(*args)

        def propose(self, token):
            checked.propose(token)
            return proposals.propose(token)

    run(target, Both(), prompt, max_tokens=13)
    run(target, Both(), prompt + recorded[:9] + ids_of(base, " dog"), max_tokens=5)  # a second turn
    assert checked.checks > 20


def test_medusa_places_each_heads_candidates_by_depth_and_rank(base):
    heads = MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 4), base)
    torch.manual_seed(0)
    for block in heads.parameters():
        block.data += 0.05 * torch.randn_like(block)
    drafter = MedusaDrafter(heads, base.device, [[0, 0, 0, 0], [0, 1, 0], [1, 0], [1, 1]])
    drafter.hidden = torch.randn(base.hidden_size)
    tree = drafter.propose(9)
    with torch.inference_mode():
        best = heads(drafter.hidden).topk(2, dim=-1).indices.tolist()
    for node in range(1, len(TREE)):
        assert tree.tokens[node] == best[TREE.depths[node] - 1][TREE.ranks[node]]


def test_a_medusa_tree_deeper_than_the_heads_is_refused_and_the_default_fits_them(base):
    heads = MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 2), base)
    with pytest.raises(BadInput, match="3 deep and this draft has 2"):
        MedusaDrafter(heads, base.device, [[0, 0, 0]])
    assert MedusaDrafter(heads, base.device).growth.max_depth == 2


def ngram(text, **options):
    drafter = NgramDrafter(**options)
    drafter.prefill(PrefillContext(text[:-1], text[-1], ForwardOutput(torch.empty(0), torch.empty(0)), None, None))
    return drafter


def test_prompt_lookup_prefers_the_longest_then_the_latest_match():
    text = [1, 2, 3, 4, 9, 2, 3, 5, 7, 3, 6, 1, 2, 3]
    assert ngram(text, depth=2).propose(3).tokens == (3, 4, 9), "1 2 3 was seen once, followed by 4 9"
    assert ngram(text[1:], depth=2).propose(3).tokens == (3, 5, 7), "of 2 3 the later place counts"
    assert ngram([1, 2, 3], depth=2).propose(3).tokens == (3,)


def test_prompt_lookup_merges_several_continuations_into_a_tree_and_learns_as_it_goes():
    drafter = ngram([2, 3, 4, 8, 2, 3, 5, 8, 2, 3], depth=3, width=2)
    tree = drafter.propose(3)
    assert {path_tokens(tree, n) for n in range(len(tree))} == {
        *((3, 5, 8, 2)[: i + 1] for i in range(4)),
        *((3, 4, 8, 2)[: i + 1] for i in range(4)),
    }
    drafter.update([6, 2, 3], None, [])
    assert drafter.propose(3).tokens[1] == 6


@pytest.mark.parametrize("options", [{"min_ngram": 0}, {"width": 0}, {"max_ngram": 1, "min_ngram": 2}])
def test_prompt_lookup_that_could_find_nothing_is_refused(options):
    with pytest.raises(BadInput):
        NgramDrafter(**options)


@pytest.mark.parametrize("options", [{"depth": 3}, {"tree": [[0, 0, 0], [0, 1], [1, 0]]}])
def test_a_standalone_draft_stays_in_step_with_the_text(options, base):
    draft = StandaloneDraft.from_base(base, 1)
    target = Target(base, 96)
    drafter = make_drafter(target, draft, options)
    prompt = ids_of(base, "the quick brown fox")
    draft_model = draft.as_base(base).model
    for step in run(target, drafter, prompt, max_tokens=12)[1:]:
        text = drafter.ids[: len(drafter.ids) - len(step.tokens)] if step.finish is None else None
        assert drafter.draft_model.cache.length <= len(drafter.ids) + 3
        assert text is None or step.draft_record.tokens
    with torch.inference_mode():
        (root,) = drafter.root()
    with torch.inference_mode():
        expected = draft_model(torch.tensor([drafter.ids])).logits[0, -1]
    torch.testing.assert_close(root, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle3", "peagle", "dflash", "draft"])
def test_an_empty_tree_drafts_nothing(kind, temperature, base):
    drafts = {
        "medusa": lambda: MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 2), base),
        "eagle": lambda: EagleDraft.from_base(base),
        "eagle3": lambda: Eagle3Draft.from_base(base),
        "peagle": lambda: PEagleDraft.from_base(base),
        "dflash": lambda: DFlashDraft.from_base(base),
        "draft": lambda: StandaloneDraft.from_base(base, 1),
    }
    for options in ({"tree": []}, {"depth": 0}) if kind in ("dflash", "draft") else ({"tree": []},):
        target = Target(base, 96)
        drafter = make_drafter(target, drafts[kind]().eval(), options)
        steps = run(target, drafter, ids_of(base, "the quick"), max_tokens=4, temperature=temperature, seed=0)
        assert len(steps) > 1 and not any(step.draft_record.tokens for step in steps)


def test_a_draft_whose_context_is_full_leaves_the_target_to_go_on_alone(base):
    target = Target(base, 96)
    drafter = make_drafter(target, StandaloneDraft.from_base(base, 1), {"depth": 3})
    drafter.draft_model = Target(drafter.draft_model.base, 16)
    prompt = ids_of(base, "the quick brown fox")
    expected = greedy(base, prompt, 24)[0]
    steps = run(target, drafter, prompt, max_tokens=24)
    assert list(itertools.chain(*[[t.id for t in s.tokens] for s in steps])) == expected
    assert steps[1].draft_record.tokens and not steps[-1].draft_record.tokens
