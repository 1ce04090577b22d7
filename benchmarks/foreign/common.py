"""Drafts of this project and of speculators with the same random weights, and the differences of what they compute."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from formats.export import build_export
from formats.imports.work import convert
from models.base import LoadedBase
from models.checkpoints import load_draft, save_draft
from training.batches import Batch

BOUNDS = {"logits": 1e-5, "loss": 1e-4, "gradients": 1e-4}
"""{what is compared: the largest allowed difference, relative to the largest value}."""


@dataclass(frozen=True)
class Comparison:
    """Differences between our network and another project's in one case, by the names of BOUNDS."""

    method: str
    case: str
    differences: dict[str, float]

    @property
    def passed(self) -> bool:
        return all(value <= BOUNDS[name] for name, value in self.differences.items())


def both_ways(draft: Any, base: LoadedBase, folder: Path) -> Iterator[tuple[str, Any, Any]]:
    """Yields (direction, our draft, speculators' network) twice: `draft` with random weights, exported and loaded by
    speculators; then a random network that speculators makes with the same options and saves, imported here."""
    randomize(draft, draft, seed=1)
    network = load_network(export(draft, base, "speculators", folder))
    if draft.embed_tokens is None:  # transformers 5.24 leaves weights that are not in the file uninitialized
        network.embed_tokens.weight.data.copy_(base.embed_tokens.weight)
    yield "ours, read by speculators", draft, network

    network = new_network(type(network), draft, base)
    randomize(network, draft, seed=2)
    network.save_pretrained(folder / "theirs")
    (folder / "import").mkdir()
    request = {"folder": str(folder / "theirs"), "scratch": str(folder / "import"), "base_folder": str(base.path)}
    convert({**request, "shown": "theirs"})
    yield "theirs, read here", load_draft(folder / "import" / "draft", base).requires_grad_(), network


@torch.no_grad()
def randomize(network: nn.Module, draft: nn.Module, seed: int) -> None:
    """Fill the weights that `draft` stores, which are not the base model's: norms from 0.5 to 1.5, others small enough
    for logits of a few units."""
    generator, names = torch.Generator().manual_seed(seed), {name for name, _ in draft.named_parameters()}
    for name, parameter in network.named_parameters():
        if name in names:
            low, high = (0.5, 1.5) if parameter.dim() == 1 else (-0.2, 0.2)
            parameter.uniform_(low, high, generator=generator)


def export(draft: Any, base: LoadedBase, format_name: str, folder: Path) -> Path:
    """Export a draft to a folder inside `folder`, and return it."""
    build_export(save_draft(folder / "ours", draft, {"base": "tiny"}), base, format_name, folder / "export")
    return folder / "export"


def load_network(folder: Path) -> Any:
    """speculators' network from a checkpoint, with the attention that runs on CPUs."""
    from speculators.config import SpeculatorModelConfig
    from speculators.model import SpeculatorModel

    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    return SpeculatorModel.from_pretrained(folder, config=config)


def new_network(network_class: Any, draft: Any, base: LoadedBase) -> Any:
    """A network of speculators with the options of `draft`, as its training command makes it."""
    from speculators.train.cli import create_transformer_layer_config

    kind, layers = "qwen3" if draft.method == "dflash" else "llama", len(draft.layers)
    layer_config = create_transformer_layer_config(
        str(base.path), layers, kind, None, base.max_length, [*range(layers)]
    )
    ids, marks = draft.draft_ids, torch.zeros(base.vocab_size, dtype=torch.bool)
    marks[ids] = True
    options = {**asdict(draft.config), "draft_vocab_size": len(ids), "verifier_name_or_path": str(base.path)}
    options |= {"target_layer_ids": [layer + 1 for layer in draft.layers_wanted]}  # counted from the embeddings
    offsets = ids - torch.arange(len(ids))
    return network_class.from_training_args(
        layer_config, marks, offsets, draft_attn_impl="eager", ttt_steps=3, **options
    )


def base_states(network: Any, base: LoadedBase, batch: Batch) -> tuple[Tensor, Tensor]:
    """What speculators' network reads of the base model: the outputs of its layers [B, L, n · H], and the input of the
    final norm [B, L, H]."""
    layers = [layer - 1 for layer in network.target_layer_ids]
    _, states = base.forward_hidden(batch.input_ids, layers=(*layers, base.num_layers - 1), lengths=batch.lengths)
    return torch.cat(states[:-1], -1), states[-1]


def packed(network: Any, base: LoadedBase, batch: Batch) -> dict[str, Tensor]:
    """Arguments of speculators' EAGLE-3 and P-EAGLE: the conversations one after the other. Entry i has the features of
    position i and token i + 1; it counts if that token and the next one are in an answer."""
    aux, last = base_states(network, base, batch)
    answer = batch.mask[:, 1:]
    position = torch.arange(answer.shape[1]).expand_as(answer)
    arguments = {
        "hidden_states": aux[:, :-1],
        "input_ids": batch.input_ids[:, 1:],
        "document_ids": torch.arange(len(answer))[:, None].expand_as(answer),
        "position_ids": position,
        "loss_mask": answer & F.pad(answer[:, 1:], (0, 1)),
        "verifier_last_hidden_states": last[:, 1:],
    }
    real = position < batch.lengths[:, None] - 1
    return {name: values[real][None] for name, values in arguments.items()}


def loss_config(kind: str) -> dict[str, Any]:
    """speculators' argument for a loss with our name, in plain torch."""
    from speculators.losses import resolve_loss_config

    return resolve_loss_config({"kl": "kl_div", "reverse_kl": "rkl"}.get(kind, kind), "eager")


@contextmanager
def outputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """Within the context, each forward of `module` appends its output to the yielded list."""
    outputs: list[Tensor] = []
    hook = module.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    try:
        yield outputs
    finally:
        hook.remove()


@torch.no_grad()
def largest_difference(*pairs: tuple[Tensor, Tensor]) -> float:
    """The largest of all pairs (ours, theirs), each relative to the largest value of theirs. NaN if any value is."""
    return float(torch.stack([(ours - theirs).abs().max() / theirs.abs().max() for ours, theirs in pairs]).max())


def step_differences(draft: nn.Module, network: nn.Module, ours: Tensor, theirs: Tensor) -> dict[str, float]:
    """Differences of two losses, and of the gradients of all weights that both projects train."""
    draft.zero_grad()
    network.zero_grad()
    ours.backward()
    theirs.backward()
    gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
    pairs = [(parameter.grad, gradients[name]) for name, parameter in draft.named_parameters()]
    trained = [(a, b) for a, b in pairs if a is not None and b is not None]
    return {"loss": largest_difference((ours, theirs)), "gradients": largest_difference(*trained)}
