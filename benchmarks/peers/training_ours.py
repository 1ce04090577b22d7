"""This project as a contender of the training benchmark: the method as `training.loop` runs it."""

import importlib.metadata
from typing import Any

import torch
from common import padded, serve_trainer

from models.base import load_base
from models.methods import train_config
from models.runtime.weights import pack_supported
from training.batches import Batch, TokenisedConversation
from training.method import make_method


class OurSide:
    """One micro-batch per step."""

    def __init__(self, options: dict[str, Any], plan: dict[str, Any]):
        settings = plan["settings"]
        self.versions = {"transformers": importlib.metadata.version("transformers")}
        config = train_config(
            method=options["method"],
            medusa_num_heads=settings["medusa_heads"],
            medusa_num_layers=settings["medusa_layers"],
            ttt_steps=settings["ttt_steps"],
            ttt_decay=settings["ttt_decay"],
            train_lm_head=False,
        )
        base = load_base(options["base"], dtype=options["base_dtype"])
        rows = [
            TokenisedConversation("", torch.tensor(row["ids"]), torch.tensor(row["mask"], dtype=torch.bool), "")
            for row in plan["rows"]
        ]
        self.method = make_method(config, base, rows).train()
        pack_supported(base, head=False)
        self.parameters = [p for p in self.method.parameters() if p.requires_grad]

    def loss(self, rows: list[Any]) -> torch.Tensor:
        ids, answer, real = padded(rows)
        features = self.method.features(Batch(ids, answer, real.sum(1)))
        scale = torch.tensor(self.method.weights) / self.method.counts(features).clamp(min=1)
        return self.method(features, scale=scale).loss

    def weights(self) -> dict[str, torch.Tensor]:
        return self.method.draft.state_dict()


if __name__ == "__main__":
    serve_trainer(OurSide)
