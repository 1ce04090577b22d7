"""A tiny base of eight layers (with fewer there are no three layers to fuse) and drafts with random weights for it."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

DRAFT_KINDS = (
    *("eagle", "eagle-biased", "eagle-scaled", "eagle3", "eagle3-small", "eagle3-residual", "eagle3-scaled"),
    *(
        "eagle-own",
        "eagle3-fused-norm",
        "eagle3-each-norm",
        "eagle3-joined-norm",
        "eagle3-deep",
        "eagle3-narrow",
        "eagle3-four",
        "peagle",
        "peagle-deep",
        "medusa",
        "medusa-shared",
        "medusa-small",
        "draft",
        "draft-narrow",
        "dflash",
        "dflash-small",
        "dflash-biased",
    ),
)
"""Those of training, and of published drafts with what only these have."""


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    from models.base import load_base
    from tests.tiny import make_tiny_base

    return load_base(make_tiny_base(tmp_path_factory.mktemp("formats") / "base", num_hidden_layers=8))


@pytest.fixture(scope="session", autouse=True)
def one_continuation():
    """Compute the base model's continuation of a prompt once, not for every export."""
    from formats import proof

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "continuation", functools.cache(proof.continuation))
        yield


LLAMA3 = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def narrow(base, ids):
    """An EAGLE-3 draft with half the base's hidden size and its own embeddings."""
    from dataclasses import asdict

    from models.draft_layers import base_layer_config
    from models.eagle3 import Eagle3Config, Eagle3Draft

    sizes = {"vocab_size": base.vocab_size, "draft_vocab_size": len(ids), "aux_layers": (1, 3, 4)}
    other = {"hidden_size": base.hidden_size // 2, "target_hidden_size": base.hidden_size, "own_embeddings": True}
    draft = Eagle3Draft(Eagle3Config(**{**asdict(base_layer_config(base)), **sizes, **other}))
    draft.d2t.copy_(ids - torch.arange(len(ids)))
    draft.t2d.zero_()[ids] = True
    return draft.attach(base)


def draft_of(name: str, base):
    """A draft of the kind `name` with random weights."""
    from models.dflash import DFlashDraft
    from models.eagle import EagleDraft
    from models.eagle3 import Eagle3Draft
    from models.medusa import MedusaConfig, MedusaHeads
    from models.methods.standalone import StandaloneSizes
    from models.peagle import PEagleDraft
    from models.standalone import StandaloneDraft

    def medusa(*shape, **options):
        return MedusaHeads.from_base(
            MedusaConfig(base.hidden_size, base.vocab_size, *shape, draft_vocab_size=options.pop("rows", 0)),
            base,
            **options,
        )

    ids = torch.arange(5, 205)
    torch.manual_seed(7)
    draft = {
        "eagle": lambda: EagleDraft.from_base(base, eagle_num_layers=2),
        "eagle-normed": lambda: EagleDraft.from_base(base, use_last_layernorm=True),
        "eagle-biased": lambda: EagleDraft.from_base(base, fc_bias=True),
        "eagle-scaled": lambda: EagleDraft.from_base(base, rope_scaling=LLAMA3),
        "eagle3-scaled": lambda: Eagle3Draft.from_base(base, ids, rope_scaling=YARN),
        "eagle3-fused-norm": lambda: Eagle3Draft.from_base(
            base, ids, norm_before_fc=True, norm_output=True, aux_layers=(0, 3, 5)
        ),
        "eagle3-each-norm": lambda: Eagle3Draft.from_base(base, ids, fc_norm=True),
        "eagle3-joined-norm": lambda: Eagle3Draft.from_base(base, ids, norm_before_fc=True),
        "eagle3-deep": lambda: Eagle3Draft.from_base(base, ids, eagle_num_layers=2, own_embeddings=True),
        "eagle3-four": lambda: Eagle3Draft.from_base(base, ids, aux_layers=(0, 2, 4, 6)),
        "eagle-own": lambda: EagleDraft.from_base(base, own_embeddings=True),
        "eagle3-narrow": lambda: narrow(base, ids),
        "eagle3": lambda: Eagle3Draft.from_base(base),
        "eagle3-small": lambda: Eagle3Draft.from_base(base, ids, aux_layers=(0, 2, 6)),
        "eagle3-residual": lambda: Eagle3Draft.from_base(base, ids, norm_before_residual=True),
        "eagle3-unordered": lambda: Eagle3Draft.from_base(base, ids, aux_layers=(2, 2, 1)),
        "peagle": lambda: PEagleDraft.from_base(base, ids, mask_token_id=3),
        "peagle-deep": lambda: PEagleDraft.from_base(
            base, mask_token_id=3, num_depths=6, eagle_num_layers=2, own_embeddings=True, fc_norm=True
        ),
        "medusa": lambda: medusa(3, 2),
        "medusa-shared": lambda: medusa(3, 1, True),
        "medusa-small": lambda: medusa(2, 1, True, rows=40, draft_ids=torch.arange(0, 80, 2)),
        "medusa-bare": lambda: medusa(2, 0),
        "dflash": lambda: DFlashDraft.from_base(base, dflash_num_layers=2, block_size=5, mask_token_id=3),
        "dflash-small": lambda: DFlashDraft.from_base(base, ids, aux_layers=(0, 2, 6), rope_scaling=YARN),
        "dflash-biased": lambda: DFlashDraft.from_base(base, attention_bias=True, output_bias=True),
        "draft": lambda: StandaloneDraft.from_base(base, 7),
        "draft-narrow": lambda: StandaloneDraft.from_base(base, 8, StandaloneSizes(8, 24, 40, 2, 1)),
    }[name]()
    if not name.startswith("draft"):  # standalone drafts keep their weights, so that tokens are accepted
        for parameter in draft.parameters():
            low, high = (0.5, 1.5) if parameter.dim() == 1 else (-0.3, 0.3)
            torch.nn.init.uniform_(parameter, low, high)
    return draft


@pytest.fixture
def checkpoint(base, tmp_path) -> Callable[..., Path]:
    """(kind, dtype) → the folder of a checkpoint."""
    from models.checkpoints import save_draft

    def save(name: str, dtype: str = "float32") -> Path:
        folder = tmp_path / f"{name}-{dtype}"
        return folder if folder.exists() else save_draft(folder, draft_of(name, base), {"base": "tiny"}, dtype)

    return save
