"""P-EAGLE here and in speculators 0.9: logits, losses and gradients of one training step, and checkpoints both ways.

    PYTHONPATH=. PYTHON_OF_SPECULATORS -m benchmarks.foreign_peagle [--json OUT]

The Python needs speculators and this project's requirements. Drafts with random weights for a tiny random base:

- theirs: saved by speculators, imported here; ours: exported in the format `speculators`, loaded by speculators.
- Two packed conversations, rollouts sampled by speculators without those that start in a prompt, which are not trained
  here. Losses are compared after adding the entropy of the base's distribution to theirs: a KL divergence there, a
  cross-entropy here, with the same gradient.

Fails if logits differ by more than 1e-5 of the largest, losses by more than 1e-4, or gradients by more than 1e-4 of the
largest.
"""

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.report import finish, make_parser
from formats.export import build_export
from formats.imports.run import Conversion
from formats.imports.work import convert
from models.base import LoadedBase, load_base
from models.checkpoints import load_draft, save_draft
from models.methods import train_config
from models.peagle import PEagleDraft
from tests.tiny import make_tiny_base
from training.batches import Batch
from training.peagle import PEagleMethod

DEPTHS, MASK_TOKEN, LENGTHS = 4, 7, (19, 26)
BOUNDS = {"logits": 1e-5, "loss": 1e-4, "gradients": 1e-4}
CASES: dict[str, dict[str, Any]] = {
    "one layer, all tokens": {},
    "two layers, 160 tokens": {"eagle_num_layers": 2, "draft_vocab_size": 160},
    "norm_before_fc, own embeddings": {"norm_before_fc": True, "own_embeddings": True, "draft_vocab_size": 160},
    "norm_before_residual, norm_output": {"norm_before_residual": True, "norm_output": True},
}


def our_draft(base: LoadedBase, draft_vocab_size: int = 0, **options: Any) -> PEagleDraft:
    torch.manual_seed(1)
    ids = torch.randperm(base.vocab_size)[: draft_vocab_size or None].sort().values
    draft = PEagleDraft.from_base(base, ids, mask_token_id=MASK_TOKEN, num_depths=DEPTHS, **options)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return draft


def their_draft(folder: Path, own_embeddings: bool) -> Any:
    """speculators' model from a folder, with the attention that runs on a CPU. Embeddings that are not in the file are
    the base model's; with transformers 5.24, from_pretrained leaves them uninitialized."""
    from speculators.models.attention import create_float_mask
    from speculators.models.peagle import PEagleDraftModel

    model = PEagleDraftModel.from_pretrained(folder)
    model._load_verifier_weights(overwrite_embed_tokens=not own_embeddings)
    model.config.transformer_layer_config._attn_implementation = model._attn_impl = "eager"
    model._create_mask_fn = create_float_mask
    model.verifier_norm = torch.nn.Identity()  # hidden states here are already the input of the lm_head
    return model.float().eval()


def batch_of(base: LoadedBase) -> Batch:
    torch.manual_seed(3)
    tokens, mask = torch.randint(3, base.vocab_size, (2, max(LENGTHS))), torch.zeros(2, max(LENGTHS), dtype=torch.bool)
    mask[0, 6:19] = mask[1, 4:12] = mask[1, 15:26] = True
    return Batch(tokens, mask, torch.tensor(LENGTHS))


def compare(draft: PEagleDraft, model: Any, base: LoadedBase) -> dict[str, float]:
    """Differences of one training step on the same batch and rollouts."""
    batch = batch_of(base)
    method = PEagleMethod(train_config(method="peagle", num_depths=DEPTHS, mask_token_id=MASK_TOKEN), base, draft)
    features = method.features(batch)
    seen = their_step(model, features, batch)
    kept, order = rollouts(features, seen["anchors"], seen["depths"])
    logits = torch.cat([draft.logits(x) for x in method._rollouts(features, kept)])
    outcome = method.loss(features, kept, torch.tensor([1 / len(order)]))
    log_p = seen["targets"][0, order].log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1).mean()
    outcome.loss.backward()
    seen["loss"].backward()
    theirs = dict(model.named_parameters())
    return {
        "logits": largest(logits, seen["logits"][0, order]),
        "loss": float((outcome.loss - entropy - seen["loss"]).detach().abs()),
        "gradients": max(
            largest(parameter.grad, theirs[name].grad, least=0.0)
            for name, parameter in draft.named_parameters()
            if parameter.grad is not None and theirs[name].grad is not None  # speculators does not train the lm_head
        ),
        "rollout positions": len(order),
    }


def their_step(model: Any, features: dict[str, Tensor], batch: Batch) -> dict[str, Any]:
    """speculators' forward with loss on the packed conversations: anchors and depths (sampled), logits, targets, loss.
    Its entry i is token i+1 with the features of i; an entry counts here if the next token is in the answer too."""
    from speculators.losses import resolve_loss_config
    from speculators.models.peagle import core

    parts: dict[str, list[Tensor]] = {name: [] for name in ("hidden", "ids", "last", "mask", "document")}
    for row, length in enumerate(LENGTHS):
        answer = batch.mask[row, :length]
        counted = torch.zeros(length - 1)
        counted[: length - 2] = (answer[1:-1] & answer[2:]).float()
        values = (features["aux"][row, : length - 1], batch.input_ids[row, 1:length], features["hidden"][row, 1:length])
        for name, value in zip(parts, (*values, counted, torch.full((length - 1,), row)), strict=True):
            parts[name].append(value)
    packed = {name: torch.cat(values)[None] for name, values in parts.items()}
    seen: dict[str, Any] = {}
    sample, metrics = core.generate_cod_sample_indices, core.compute_metrics

    def sampled(**options: Any) -> tuple[Tensor, Tensor]:
        anchors, depths = sample(**options)
        trained = (depths == 0) | (options["loss_mask"][0][anchors] == 1)
        seen.update(anchors=anchors[trained], depths=depths[trained])
        return seen["anchors"], seen["depths"]

    def recorded(**options: Any) -> Any:
        seen.update(logits=options["logits"], targets=options["targets"])
        return metrics(**options)

    torch.manual_seed(5)
    with patch.object(core, "generate_cod_sample_indices", sampled), patch.object(core, "compute_metrics", recorded):
        _, seen["loss"], _ = model(
            packed["hidden"],
            packed["ids"],
            packed["document"],
            loss_mask=packed["mask"],
            verifier_last_hidden_states=packed["last"],
            num_depths=DEPTHS,
            loss_config=resolve_loss_config("kl_div", "eager"),
        )
    return seen


def rollouts(features: dict[str, Tensor], anchors: Tensor, depths: Tensor) -> tuple[Tensor, list[int]]:
    """Their rollouts as `kept` [N, depths] of our counted positions, and their indices in our order."""
    starts = (0, LENGTHS[0] - 1)
    places = zip(features["row"].tolist(), features["position"].tolist(), strict=True)
    number = {starts[row] + position: n for n, (row, position) in enumerate(places)}
    kept, found = torch.zeros(len(number), DEPTHS, dtype=torch.bool), []
    for index, (anchor, depth) in enumerate(zip(anchors.tolist(), depths.tolist(), strict=True)):
        if anchor in number:
            kept[number[anchor], depth] = True
            found.append((depth, number[anchor], index))
    return kept, [index for _, _, index in sorted(found)]


def largest(ours: Tensor, theirs: Tensor, least: float = 1.0) -> float:
    """Largest difference over the largest value, of at least `least`."""
    return float((ours - theirs).detach().abs().max() / theirs.detach().abs().max().clamp(min=least))


def both_ways(name: str, options: dict[str, Any], base: LoadedBase, scratch: Path) -> Iterator[tuple[str, dict]]:
    """Our checkpoint read by speculators, and what speculators saves read here."""
    torch.manual_seed(9)
    draft = our_draft(base, **options)
    if draft.embed_tokens is not None:
        torch.nn.init.normal_(draft.embed_tokens.weight)
    save_draft(scratch / "draft", draft, {"base": "tiny"})
    build_export(scratch / "draft", base, "speculators", scratch / "export")
    model = their_draft(scratch / "export", draft.embed_tokens is not None)
    yield (
        f"{name}: ours, read by speculators",
        compare(load_draft(scratch / "draft", base).requires_grad_(), model, base),
    )
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.zero_grad()
    model.save_pretrained(scratch / "theirs")
    (scratch / "import").mkdir()
    convert(asdict(Conversion(str(scratch / "theirs"), str(scratch / "import"), str(base.path), "theirs")))
    yield (
        f"{name}: theirs, read here",
        compare(load_draft(scratch / "import" / "draft", base).requires_grad_(), model, base),
    )


def main() -> int:
    arguments = make_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = load_base(make_tiny_base(Path(folder) / "base", num_hidden_layers=8))
        for number, (name, options) in enumerate(CASES.items()):
            (scratch := Path(folder) / str(number)).mkdir()
            results |= dict(both_ways(name, options, base, scratch))
    wrong = [name for name, found in results.items() if any(found[key] > bound for key, bound in BOUNDS.items())]
    lines = [
        f"{'FAIL' if name in wrong else 'ok  '} {name}: "
        + ", ".join(f"{key} {value:.1e}" if key in BOUNDS else f"{value} {key}" for key, value in found.items())
        for name, found in results.items()
    ]
    finish({"cases": results}, "\n".join(lines), arguments.json)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
