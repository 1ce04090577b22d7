"""P-EAGLE's network: all rollouts of a row in one forward, and each equals drafting from its anchor alone."""

import pytest
import torch

from models.base import load_base
from models.checkpoints import load_draft, load_draft_for_training, save_draft
from models.eagle3 import Eagle3Draft
from models.methods import train_config
from models.peagle import PEagleDraft, RolloutBackend
from speculoos.errors import BadInput
from training.peagle import PEagleMethod

LENGTH, DEPTHS = 9, 3
ANCHORS = [[[2, 4, 5], [3, 0, 0]], [[2, 5], [0, 0]]]
"""By depth and row; the second row has one rollout, of depth 1, and padding."""
PARENTS = [[[0, 0, 0], [0, 0, 0]], [[0, 2], [0, 0]]]
ROLLOUTS = {(0, 2): 2, (0, 4): 1, (0, 5): 2, (1, 3): 1}
"""{(row, anchor): masked positions}."""
TOKENS = [[2, 4, 5, 6], [3, 7, 0, 0]]


@pytest.fixture(scope="module")
def base(tiny_base):
    return load_base(tiny_base)


def new_draft(base, **options) -> PEagleDraft:
    torch.manual_seed(3)
    return PEagleDraft.from_base(base, torch.arange(5, 105), mask_token_id=7, num_depths=DEPTHS, **options)


def drafted_alone(draft: PEagleDraft, features: torch.Tensor, ids: torch.Tensor, anchor: int, masked: int):
    """Outputs [1 + masked, H] at an anchor and after it, from the tokens up to the anchor only."""
    masks = draft.mask_feature().expand(1, masked, -1)
    x = torch.cat([features[None, : anchor + 1], masks], 1)
    tokens = torch.cat([ids[None, : anchor + 1], torch.full((1, masked), draft.config.mask_token_id)], 1)
    return draft(x, tokens, torch.arange(anchor + 1 + masked)[None])[0, anchor:]


@pytest.mark.parametrize("layers", [1, 2])
def test_every_rollout_of_one_forward_equals_drafting_from_its_anchor_alone(base, layers):
    """Outputs and gradients; with one layer, only some tokens are queries."""
    draft = new_draft(base, eagle_num_layers=layers).float()
    features, ids = torch.randn(2, LENGTH, base.hidden_size), torch.randint(0, 300, (2, LENGTH))
    anchors, parents = ([torch.tensor(table) for table in tables] for tables in (ANCHORS, PARENTS))
    masked = sum(table.shape[1] for table in anchors)
    tokens = torch.tensor(TOKENS) if layers == 1 else None
    index = None if tokens is None else torch.cat([tokens, LENGTH + torch.arange(masked).expand(2, -1)], 1)
    x = draft(
        torch.cat([features, draft.mask_feature().expand(2, masked, -1)], 1),
        torch.cat([ids, torch.full((2, masked), 7)], 1),
        torch.cat([torch.arange(LENGTH).expand(2, -1), anchors[0] + 1, anchors[1] + 2], 1),
        RolloutBackend(LENGTH, anchors, parents, tokens),
        index,
    )
    first = LENGTH if tokens is None else tokens.shape[1]
    totals = [torch.zeros(()), torch.zeros(())]
    for (row, anchor), depth in ROLLOUTS.items():
        expected = drafted_alone(draft, features[row], ids[row], anchor, depth)
        columns = [anchor if tokens is None else TOKENS[row].index(anchor), first + ANCHORS[0][row].index(anchor)]
        columns += [first + len(ANCHORS[0][0]) + ANCHORS[1][row].index(anchor)] if depth == 2 else []
        torch.testing.assert_close(x[row, columns], expected, atol=1e-5, rtol=1e-5)
        totals = [total + out.square().sum() for total, out in zip(totals, (x[row, columns], expected), strict=True)]
    names = ("mask_hidden", "fc.weight", "layers.0.self_attn.k_proj.weight", f"layers.{layers - 1}.mlp.up_proj.weight")
    parameters = [draft.get_parameter(name) for name in names]
    for ours, theirs in zip(*(torch.autograd.grad(total, parameters) for total in totals), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"eagle_num_layers": 2, "fc_norm": True}])
def test_a_saved_draft_is_read_back_bit_for_bit(base, options, tmp_path):
    """Also if the draft's inputs were scaled for training."""
    draft = new_draft(base, feature_rms=torch.rand(3 * base.hidden_size) * 9, **options)
    loaded = load_draft(save_draft(tmp_path / "draft", draft, {}), base)
    assert loaded.config == draft.config and loaded.mask_hidden.shape == (1, 1, 3 * base.hidden_size)
    state = draft.state_dict()
    assert all(torch.equal(state[name], value) for name, value in loaded.state_dict().items())
    torch.testing.assert_close(loaded.mask_feature(), draft.mask_feature())


def test_a_new_mask_is_as_large_as_the_features_of_each_channel(base):
    rms = torch.logspace(-2, 2, 3 * base.hidden_size)
    ratio = new_draft(base, feature_rms=rms).mask_hidden.detach().flatten() / rms
    assert 0.8 < float(ratio.square().mean().sqrt()) < 1.2


def test_a_training_from_an_eagle3_draft_keeps_its_precision(tiny_base, tmp_path):
    """Also with a base in half precision."""
    base = load_base(tiny_base, dtype="bfloat16")
    eagle3 = Eagle3Draft.from_base(base).float()
    torch.nn.init.normal_(eagle3.fc.weight)
    folder = save_draft(tmp_path / "eagle3", eagle3, {})
    config = train_config(method="peagle", num_depths=DEPTHS, mask_token_id=7)
    weights = PEagleMethod(config, base, load_draft_for_training(folder, base, "peagle")).draft.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in eagle3.state_dict().items())


@torch.no_grad()
def test_a_training_from_an_eagle3_draft_starts_with_its_first_depth(base, tmp_path):
    torch.manual_seed(5)
    eagle3 = Eagle3Draft.from_base(base, torch.arange(5, 105), norm_before_residual=True)
    folder = save_draft(tmp_path / "eagle3", eagle3, {})
    config = train_config(method="peagle", num_depths=DEPTHS, mask_token_id=7)
    draft = PEagleMethod(config, base, load_draft_for_training(folder, base, "peagle")).draft
    assert (draft.config.num_depths, draft.mask_token_id, draft.config.norm_before_residual) == (DEPTHS, 7, True)
    features, ids, positions = torch.randn(1, 6, base.hidden_size), torch.arange(6)[None], torch.arange(6)[None]
    torch.testing.assert_close(draft(features, ids, positions), eagle3(features, ids, positions))
    assert torch.equal(draft.draft_ids, eagle3.draft_ids)
    reloaded = load_draft(save_draft(tmp_path / "peagle", draft, {}), base)
    assert torch.equal(reloaded.mask_hidden, draft.mask_hidden)
    with pytest.raises(BadInput, match="holds a draft of the method eagle3, not medusa"):
        load_draft_for_training(folder, base, "medusa")
