"""This project as a contender of the training benchmark; started by benchmarks.training."""

import argparse
import importlib.metadata
from typing import Any

import torch

from benchmarks.peers.common import padded, serve
from models.base import load_base
from models.methods import train_config
from models.runtime.weights import pack_supported
from training.batches import Batch, TokenisedConversation
from training.method import make_method


class OurSide:
    """The training method as `training.loop` runs it, with one micro-batch per step."""

    def __init__(self, arguments: argparse.Namespace, plan: dict[str, Any]):
        settings = plan["settings"]
        self.versions = {"transformers": importlib.metadata.version("transformers")}
        config = train_config(
            method=arguments.method,
            medusa_num_heads=settings["medusa_heads"],
            medusa_num_layers=settings["medusa_layers"],
            ttt_steps=settings["ttt_steps"],
            ttt_decay=settings["ttt_decay"],
            train_lm_head=False,
        )
        base = load_base(arguments.base, dtype=arguments.base_dtype)
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
    serve(OurSide)
