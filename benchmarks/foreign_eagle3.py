"""Does an EAGLE-3 draft compute in speculators what it computes here? Its network and ours with the same weights.

    python -m benchmarks.foreign_eagle3 [--json OUT]

Run it where speculators 0.9 is installed beside this project. In fp32, for every combination of the norms of EAGLE-3.1:
a random draft of ours is exported and loaded by speculators, and a random one of speculators, saved by it, is imported
here. Both read the same hidden states of a tiny random base model; the logits of three unrolled steps are compared.
Then the losses that both have (`ttt_loss`) on one row, with the gradient of `fc`; and D-PACE on random blocks, as its
DFlash weighs them. Fails beyond 1e-5 of the largest logit, 1e-4 of a loss or of the largest gradient.
"""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import conditions, finish, load_average, make_parser, table_lines
from formats.export import build_export
from formats.imports.run import Conversion
from formats.imports.work import convert
from models.base import LoadedBase, load_base
from models.chain_attention import ChainBackend
from models.checkpoints import load_draft, save_draft
from models.eagle3 import Eagle3Draft
from models.logits import Head
from models.methods import train_config
from tests.tiny import make_tiny_base
from training.batches import Batch
from training.eagle import next_tokens
from training.eagle3 import Eagle3Method
from training.losses import dpace_weights, hard_loss, label_losses

NEAR, NEAR_LOSS, STEPS, TOKENS, DRAFT_VOCABULARY = 1e-5, 1e-4, 3, 24, 200
KINDS = {"kl": "kl_div", "reverse_kl": "rkl", "tv": "tv"}
"""{our name of a loss: its name in speculators}."""
NORMS = ((), ("norm_before_fc",), ("fc_norm",))


@dataclass(frozen=True)
class Case:
    """One draft: its options, its vocabulary, who made it, and the largest difference of a logit over the largest."""

    options: str
    vocabulary: int
    made_by: str
    difference: float

    @property
    def passed(self) -> bool:
        return self.difference <= NEAR


@dataclass(frozen=True)
class LossCase:
    """A loss by both, and the largest difference of a gradient over the largest gradient."""

    loss: str
    options: str
    ours: float
    theirs: float
    gradient: float

    @property
    def passed(self) -> bool:
        return abs(self.ours - self.theirs) <= NEAR_LOSS * abs(self.theirs) and self.gradient <= NEAR_LOSS


@torch.no_grad()
def randomize(network: torch.nn.Module) -> None:
    """Norms from 0.5 to 1.5, other weights small enough for logits of a few units."""
    for name, parameter in network.named_parameters():
        if not name.startswith(("verifier_", "embed_tokens")):
            low, high = (0.5, 1.5) if parameter.dim() == 1 else (-0.2, 0.2)
            torch.nn.init.uniform_(parameter, low, high)


def peer_network(base: LoadedBase, options: dict[str, bool], ids: Tensor) -> Any:
    """A random draft of speculators for the base model, with the tokens `ids`."""
    from speculators.models.eagle3 import Eagle3DraftModel
    from speculators.train.cli import create_transformer_layer_config

    layer = create_transformer_layer_config(str(base.path), 1, "llama", None, base.max_length, [0])
    whole, marks = len(ids) == base.vocab_size, torch.zeros(base.vocab_size, dtype=torch.bool)
    marks[ids] = True
    network = Eagle3DraftModel.from_training_args(
        layer,
        None if whole else marks,
        None if whole else ids - torch.arange(len(ids)),
        verifier_name_or_path=str(base.path),
        draft_vocab_size=len(ids),
        ttt_steps=STEPS,
        draft_attn_impl="eager",
        norm_before_residual=options.get("norm_before_residual", False),
        **{name: options.get(name, False) for name in ("norm_before_fc", "fc_norm", "norm_output")},
    )
    randomize(network)
    return network


def inputs(base: LoadedBase, layers: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """aux [1, L, 3H]; the final norm's input [1, L, H]; token ids [1, L]."""
    ids = torch.randint(0, base.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(2))
    last: list[Tensor] = []
    hook = base.final_norm.register_forward_pre_hook(lambda _module, given: last.append(given[0]))
    _, aux = base.forward_hidden(ids, layers=layers)
    hook.remove()
    return torch.cat(aux, -1), last[0], ids


@torch.no_grad()
def peer_logits(network: Any, aux: Tensor, ids: Tensor) -> list[Tensor]:
    """Logits [L − 1, V'] of each unrolled step, as its `forward` computes them."""
    logits: list[Tensor] = []
    hook = network.lm_head.register_forward_hook(lambda _module, _given, out: logits.append(out[0]))
    places = torch.arange(TOKENS - 1)[None]
    network.eval()(aux[:, :-1], ids[:, 1:], torch.zeros_like(places), position_ids=places, ttt_steps=STEPS)
    hook.remove()
    return logits


@torch.no_grad()
def our_logits(draft: Eagle3Draft, aux: Tensor, ids: Tensor) -> list[Tensor]:
    """The same, by the network that training unrolls."""
    backend, x, logits = ChainBackend(), draft.fuse(aux, (aux[:, :-1],)), []
    for step in range(STEPS):
        tokens, positions = next_tokens(ids, step)
        x = draft(x, tokens[:, :-1], positions[:, :-1], backend)
        logits.append(draft.logits(x)[0])
    return logits


def difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Of the positions of each step that have a token: the later ones read padding."""
    pairs = [(a[: TOKENS - 1 - j], b[: TOKENS - 1 - j]) for j, (a, b) in enumerate(zip(ours, theirs, strict=True))]
    return max(float((a - b).abs().max() / max(float(b.abs().max()), 1.0)) for a, b in pairs)


def cases(base: LoadedBase, scratch: Path) -> Iterator[Case]:
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    some, every = torch.arange(5, 5 + DRAFT_VOCABULARY), torch.arange(base.vocab_size)
    choices = product(NORMS, ((), ("norm_output",)), ((), ("norm_before_residual",)), (some, every))
    for number, (before, output, residual, ids) in enumerate(choices):
        names = (*before, *output, *residual)
        options, folder = dict.fromkeys(names, True), scratch / str(number)
        torch.manual_seed(number)
        draft = Eagle3Draft.from_base(base, ids, **options)
        randomize(draft)
        build_export(save_draft(folder / "ours", draft, {"base": "tiny"}), base, "speculators", folder / "export")
        config = Eagle3SpeculatorConfig.from_pretrained(folder / "export")
        config.transformer_layer_config._attn_implementation = "eager"
        peer = Eagle3DraftModel.from_pretrained(folder / "export", config=config)
        peer.embed_tokens.weight.data.copy_(base.embed_tokens.weight)
        aux, _, tokens = inputs(base, draft.layers_wanted)
        ours, theirs = our_logits(draft, aux, tokens), peer_logits(peer, aux, tokens)
        yield Case(" ".join(names), len(ids), "Speculoos", difference(ours, theirs))

        network = peer_network(base, options, ids)
        imported = imported_draft(network, base, folder)
        ours, theirs = our_logits(imported, aux, tokens), peer_logits(network, aux, tokens)
        yield Case(" ".join(names), len(ids), "speculators", difference(ours, theirs))


def imported_draft(network: Any, base: LoadedBase, folder: Path) -> Eagle3Draft:
    """A draft that speculators saves, imported here."""
    network.save_pretrained(folder / "theirs")
    (folder / "import").mkdir()
    asked = Conversion(str(folder / "theirs"), str(folder / "import"), str(base.path), "theirs", base_name="tiny")
    convert(asdict(asked))
    return load_draft(folder / "import" / "draft", base)


def loss_cases(base: LoadedBase, scratch: Path) -> Iterator[LossCase]:
    """One training step on one row that is all answer. With the whole vocabulary: positions whose most likely token is
    not in a smaller one count in speculators, but not here."""
    from speculators.losses import resolve_loss_config

    for norms in ((), ("norm_before_fc", "norm_output"), ("fc_norm", "norm_output")):
        torch.manual_seed(0)
        network = peer_network(base, dict.fromkeys(norms, True), torch.arange(base.vocab_size))
        draft = imported_draft(network, base, scratch / "-".join(("loss", *norms))).requires_grad_()
        aux, last, ids = inputs(base, draft.layers_wanted)
        places, mask = torch.arange(TOKENS - 1)[None], torch.ones(1, TOKENS - 1, dtype=torch.bool)
        mask[:, -1] = False  # nothing follows the last token
        for kind, name in KINDS.items():
            method = Eagle3Method(train_config("eagle3", ttt_loss=kind, ttt_steps=STEPS, ttt_decay=0.8), base, draft)
            features = method.features(Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([TOKENS])))
            ours = method(features, 0, torch.tensor(method.weights) / method.counts(features)).loss
            network.zero_grad()
            _, theirs, _ = network.train()(
                aux[:, :-1],
                ids[:, 1:],
                torch.zeros_like(places),
                mask,
                places,
                last[:, 1:],
                STEPS,
                0.8,
                resolve_loss_config(name, "eager"),
            )
            theirs.backward()
            grad = torch.autograd.grad(ours, draft.fc.weight)[0]
            off = (grad - network.fc.weight.grad).abs().max() / grad.abs().max()
            yield LossCase(kind, " ".join(norms), float(ours.detach()), float(theirs.detach()), float(off))
    yield dpace_case()


def dpace_case(blocks: int = 30, size: int = 6, columns: int = 90, alpha: float = 0.5) -> LossCase:
    """Cross-entropy of random blocks with random masks, weighted by D-PACE; the gradient is that of the logits."""
    from speculators.losses import dpace_loss_decay, loss_function
    from speculators.losses.eager import ce_loss

    random = torch.Generator().manual_seed(0)
    logits, targets = (2 * torch.randn(blocks * size, columns, generator=random) for _ in range(2))
    mask = torch.rand(blocks * size, generator=random) < 0.8
    theirs_of, ours_of = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    places = torch.arange(blocks * size)[None] % size
    decay = partial(dpace_loss_decay, loss_mask=mask[None], block_size=size, dpace_alpha=alpha)
    theirs = loss_function(theirs_of[None], targets[None], mask[None], places, ce_loss, decay)
    head, labels = Head(torch.eye(columns)), targets.argmax(-1)
    losses = label_losses(ours_of, head, labels).view(blocks, size)
    weights = dpace_weights(losses, mask.view(blocks, size), alpha).flatten()
    ours = hard_loss(ours_of, head, labels, weights)[0] / mask.sum()
    ours.backward()
    theirs.backward()
    off = (ours_of.grad - theirs_of.grad).abs().max() / theirs_of.grad.abs().max()
    return LossCase("dpace", "random blocks", float(ours.detach()), float(theirs.detach()), float(off))


def main(argv: list[str] | None = None) -> int:
    args, before = make_parser(__doc__).parse_args(argv), load_average()
    with tempfile.TemporaryDirectory() as folder:
        base = load_base(make_tiny_base(Path(folder) / "base", num_hidden_layers=8))
        found, losses = list(cases(base, Path(folder))), list(loss_cases(base, Path(folder)))
    rows = [[case.options or "none", str(case.vocabulary), case.made_by, f"{case.difference:.1e}"] for case in found]
    lines = table_lines("| options | vocabulary | weights of | difference |", rows)
    rows = [[c.loss, c.options or "none", f"{c.ours:.6f}", f"{c.theirs:.6f}", f"{c.gradient:.1e}"] for c in losses]
    lines += ["", *table_lines("| loss | options | ours | speculators | gradient |", rows)]
    result = {"speculators": version("speculators"), **conditions(before)}
    result |= {"cases": [asdict(case) for case in found], "losses": [asdict(case) for case in losses]}
    finish(result, "\n".join(lines), args.json)
    return 0 if all(case.passed for case in (*found, *losses)) else 1


if __name__ == "__main__":
    sys.exit(main())
