"""A drafting method in one file: a bigram table guesses the next token from the last one alone.

It contains all that a third-party method needs; SPECULOOS_METHODS=tests.models.methods.toy registers it.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from decoding.drafters.base import Drafter
from decoding.tree import DraftTree, chain_shape
from models.logits import Head
from models.methods.record import BaseShape, DraftSize, Method
from models.methods.settings import TrainConfig, setting
from training.losses import hard_loss
from training.medusa import medusa_labels
from training.method import Outcome, label_ranks, outcome_of_loss_sums, outcome_of_ranks


class BigramSettings(TrainConfig):
    bigram_rank: int = setting(16, "Numbers a token is described by.", 1, 1024)


class BigramDraft(nn.Module):
    """Logits of the token after token t: rows[t] · columns."""

    method: ClassVar[str] = "bigram"

    def __init__(self, vocab_size: int, rank: int, base: Any):
        super().__init__()
        self.rows, self.columns = nn.Embedding(vocab_size, rank), nn.Linear(rank, vocab_size, bias=False)
        self.to(device=base.device, dtype=base.dtype)

    @classmethod
    def from_json(cls, data: dict[str, Any], base: Any) -> "BigramDraft":
        return cls(data["vocab_size"], data["rank"], base)

    def to_json(self) -> dict[str, Any]:
        return {"vocab_size": self.rows.num_embeddings, "rank": self.rows.embedding_dim}


class BigramMethod(nn.Module):
    """The table with its loss: cross-entropy of the answers' tokens."""

    depth_name, names, weights = "depth", ("token",), (1.0,)

    def __init__(self, config: BigramSettings, base: Any, draft: BigramDraft | None = None):
        super().__init__()
        self.draft = (draft or BigramDraft(base.vocab_size, config.bigram_rank, base)).float()

    @torch.no_grad()
    def features(self, batch: Any) -> dict[str, Tensor]:
        labels = medusa_labels(batch.input_ids, batch.mask, 1)[:, :, 0]
        row, position = (labels >= 0).nonzero(as_tuple=True)
        last, label = batch.input_ids[row, position + 1], labels[row, position]
        return {"last": last, "label": label, "row": row, "position": position}

    def counts(self, features: dict[str, Tensor]) -> Tensor:
        return torch.tensor([len(features["row"])])

    def forward(self, features: dict[str, Tensor], seed: int = 0, scale: Tensor | None = None) -> Outcome:
        head = Head(self.draft.columns.weight)
        total, hits = hard_loss(self.draft.rows(features["last"]), head, features["label"])
        return outcome_of_loss_sums([total], scale, hits[:, None], torch.ones_like(hits)[:, None])

    @torch.no_grad()
    def drafted(self, features: dict[str, Tensor]) -> Outcome:
        ranks = label_ranks(self.draft.columns, self.draft.rows(features["last"]), features["label"])[:, None]
        return outcome_of_ranks(ranks, torch.ones_like(ranks, dtype=torch.bool))


class BigramDrafter(Drafter):
    """A chain of best guesses, each from the one before."""

    name = "bigram"

    def __init__(self, draft: BigramDraft, depth: int):
        self.draft, self.depth = draft, depth

    @torch.inference_mode()
    def propose(self, token: int) -> DraftTree:
        tokens = [token]
        for _ in range(self.depth):
            tokens.append(int(self.draft.columns(self.draft.rows(torch.tensor(tokens[-1]))).argmax()))
        return DraftTree(tuple(tokens), chain_shape(self.depth))


def make(target: Any, draft: BigramDraft, options: dict[str, Any]) -> BigramDrafter:
    return BigramDrafter(draft, options.get("depth", 2))


def size(base: BaseShape, config: Any) -> DraftSize:
    parameters = 2 * base.vocabulary * config.bigram_rank
    return DraftSize(parameters, parameters)


METHOD = Method(
    name="bigram",
    title="Bigram",
    noun="Bigram table",
    about="A table of which token follows which. A toy.",
    network="tests.models.methods.toy:BigramDraft",
    trainer="tests.models.methods.toy:BigramMethod",
    drafter="tests.models.methods.toy",
    drafting=("depth",),
    config=BigramSettings,
    size=size,
)
