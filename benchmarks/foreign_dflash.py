"""Compares the DFlash network and its losses with speculators' and z-lab's own code, with random weights in fp32.

    PYTHONPATH=. PYTHON_WITH_SPECULATORS -m benchmarks.foreign_dflash [--zlab dflash/model.py] [--json OUT]

For each kind of draft, a checkpoint of ours is exported and loaded by speculators, and one that speculators saved is
imported; the logits of the same blocks are compared, and, with a whole vocabulary, the losses of one step on the same
batch and anchors (with a smaller one speculators also counts tokens outside it). With z-lab's `model.py` also its
network. Fails if logits differ by more than 1e-5 or losses by more than 1e-4 (relative to the largest).
"""

import importlib.util
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import finish, make_parser
from formats.export import build_export
from formats.facts import CardFacts
from formats.imports.work import convert
from models.base import LoadedBase, load_base
from models.block_attention import BlockBackend
from models.checkpoints import load_draft, save_draft
from models.dflash import DFlashDraft
from models.methods import train_config
from tests.tiny import make_tiny_base
from training.batches import Batch
from training.dflash import DFlashMethod

KINDS: dict[str, dict[str, Any]] = {
    "default": {"dflash_num_layers": 2, "block_size": 5},
    "other layers": {"dflash_num_layers": 1, "block_size": 8, "aux_layers": (0, 2, 6), "mask_token_id": 7},
    "small vocabulary": {"dflash_num_layers": 3, "block_size": 4, "draft_ids": torch.arange(3, 320, 2)},
}
LOSSES = (("ce", "decay"), ("kl", "decay"), ("reverse_kl", "decay"), ("ce", "dpace"))
LENGTH, PROMPT = 60, 12
LOGITS, LOSS = 1e-5, 1e-4


def random_draft(base: LoadedBase, **options: Any) -> DFlashDraft:
    torch.manual_seed(0)
    draft = DFlashDraft.from_base(base, options.pop("draft_ids", None), **options)
    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.requires_grad:
                low, high = (0.5, 1.5) if parameter.dim() == 1 else (-0.2, 0.2)
                parameter.uniform_(low, high)
    return draft.eval()


def greedy_batch(base: LoadedBase) -> Batch:
    """A prompt and the base's greedy answer, so that a label is the base's most probable token."""
    torch.manual_seed(1)
    prompt = torch.randint(5, base.vocab_size, (1, PROMPT))
    ids = base.model.generate(prompt, max_new_tokens=LENGTH - PROMPT, do_sample=False, eos_token_id=None)
    mask = torch.arange(LENGTH)[None] >= PROMPT
    return Batch(ids, mask, torch.tensor([LENGTH]))


def our_logits(draft: DFlashDraft, aux: Tensor, ids: Tensor, anchors: Tensor) -> Tensor:
    """[blocks, block size, columns]"""
    backend = BlockBackend(torch.zeros_like(anchors), anchors, 1)
    positions = anchors[:, None] + torch.arange(draft.block_size)
    context = draft.fuse(aux), torch.arange(aux.shape[1])[None]
    return draft.logits(draft(draft.block_ids(ids[0, anchors]), positions, backend, context))


def loaded_peer(folder: Path) -> Any:
    from speculators.model import SpeculatorModel

    model = SpeculatorModel.from_pretrained(str(folder))
    return eager(model.float().eval())


def eager(model: Any) -> Any:
    """With attention in plain torch, masks in fp32."""
    from speculators.models.attention import create_float_mask

    model.config.transformer_layer_config._attn_implementation = "eager"
    for layer in model.layers:
        layer.self_attn.config._attn_implementation = "eager"
    model._create_mask_fn = partial(create_float_mask, dtype=torch.float32)
    return model


def peer_step(model: Any, batch: Batch, aux: Tensor, last: Tensor, anchors: Tensor, kind: str, weights: str) -> Any:
    """speculators' (logits, loss) for blocks at `anchors`. `last`: hidden states before the final norm."""
    from speculators.losses import resolve_loss_config
    from speculators.models.dflash import core

    name = {"kl": "kl_div", "reverse_kl": "rkl"}.get(kind, kind)
    core.select_anchors = lambda *_: (anchors, torch.ones_like(anchors, dtype=torch.bool))
    given = {
        "hidden_states": aux,
        "input_ids": batch.input_ids,
        "loss_mask": batch.mask.float(),
        "verifier_last_hidden_states": last,
        "document_ids": torch.zeros_like(batch.input_ids),
    }
    _, logits, *_ = model._backbone_forward(**given, max_anchors=len(anchors))
    options = {
        "loss_config": resolve_loss_config(name, "eager"),
        "max_anchors": len(anchors),
        "per_position_loss_weight": "dpace" if weights == "dpace" else "fixed-exp-decay",
    }
    _, loss, _ = model(**given, **options)
    return logits, loss


def compare(kind: str, base: LoadedBase, scratch: Path) -> dict[str, Any]:
    """Both directions and the losses of one kind of draft."""
    ours, batch = random_draft(base, **KINDS[kind]), greedy_batch(base)
    layers = ours.layers_wanted
    last, aux = base.forward_hidden(batch.input_ids, layers=(*layers, base.num_layers - 1))
    aux, before_norm = torch.cat(aux[:-1], -1), aux[-1]
    # speculators needs the whole block within the row
    anchors = torch.arange(PROMPT, LENGTH - ours.block_size, 3)
    save_draft(scratch / "ours", ours, {"base": "tiny"})
    facts = CardFacts("tiny", str(base.path))
    report = build_export(scratch / "ours", base, "speculators", scratch / "exported", facts=facts)
    assert report.passed, report.failures
    theirs = loaded_peer(scratch / "exported")
    expected, _ = peer_step(theirs, batch, aux, before_norm, anchors, "ce", "decay")
    found = {"ours to speculators": difference(expected.view(-1), our_logits(ours, aux, batch.input_ids, anchors))}

    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if not name.startswith(("embed_tokens", "lm_head", "verifier")):
                parameter.add_(torch.randn_like(parameter) * 0.05)
    theirs.save_pretrained(scratch / "theirs")
    request = {"folder": str(scratch / "theirs"), "scratch": str(scratch), "base_folder": str(base.path)}
    convert({**request, "shown": "theirs", "base_name": "tiny"})
    imported = load_draft(scratch / "draft", base)
    expected, _ = peer_step(theirs, batch, aux, before_norm, anchors, "ce", "decay")
    found["speculators to ours"] = difference(expected.view(-1), our_logits(imported, aux, batch.input_ids, anchors))
    losses = {}
    for loss, weights in LOSSES if "draft_ids" not in KINDS[kind] else ():
        settings = train_config("dflash", dflash_loss=loss, position_weights=weights)
        method = DFlashMethod(settings, base, load_draft(scratch / "draft", base))
        features = method.features(batch)
        at = {int(position) + 1: place for place, position in enumerate(features["position"])}
        features["chosen"] = torch.tensor([at[int(anchor)] for anchor in anchors])
        counted = method.counts(features)
        mine = float(method(features, scale=1 / counted).loss)
        _, other = peer_step(theirs, batch, aux, before_norm, anchors, loss, weights)
        losses[f"{loss}, {weights}"] = {"ours": mine, "speculators": float(other)}
    return {"kind": kind, "logits": found, "losses": losses}


def compare_zlab(file: Path, base: LoadedBase, scratch: Path) -> dict[str, Any]:
    """z-lab's own network with the files of our export for SGLang, which has its layout."""
    specification = importlib.util.spec_from_file_location("zlab_model", file)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    ours, batch = random_draft(base, **KINDS["default"]), greedy_batch(base)
    _, aux = base.forward_hidden(batch.input_ids, layers=ours.layers_wanted)
    aux = torch.cat(aux, -1)
    save_draft(scratch / "zlab-ours", ours, {"base": "tiny"})
    build_export(scratch / "zlab-ours", base, "sglang", scratch / "zlab")
    theirs = module.DFlashDraftModel.from_pretrained(scratch / "zlab", dtype=torch.float32, attn_implementation="eager")
    worst = 0.0
    for anchor in (PROMPT, PROMPT + 9, LENGTH - 2):
        ids = ours.block_ids(batch.input_ids[0, anchor : anchor + 1])
        expected = base.logits(
            theirs.eval()(
                target_hidden=aux[:, :anchor],
                noise_embedding=base.embed_tokens(ids),
                position_ids=torch.arange(anchor + ours.block_size)[None],
                is_causal=False,
            )
        )
        mine = our_logits(ours, aux, batch.input_ids, torch.tensor([anchor]))
        worst = max(worst, difference(expected.view(-1), mine))
    return {"kind": "z-lab", "logits": {"ours to z-lab": worst}, "losses": {}}


def difference(expected: Tensor, actual: Tensor) -> float:
    """Largest absolute difference, over the largest expected value (at least 1)."""
    return float((expected - actual.reshape(-1)).abs().max() / expected.abs().max().clamp(min=1))


def passed(result: dict[str, Any]) -> bool:
    close = all(value <= LOGITS for value in result["logits"].values())
    pairs = result["losses"].values()
    return close and all(abs(p["ours"] - p["speculators"]) <= LOSS * max(p["speculators"], 1.0) for p in pairs)


@torch.no_grad()
def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--zlab", type=Path, help="dflash/model.py of z-lab/dflash.")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as name:
        base = load_base(make_tiny_base(Path(name) / "base", num_hidden_layers=8))
        for kind in KINDS:
            scratch = Path(name) / kind.replace(" ", "-")
            scratch.mkdir()
            results.append(compare(kind, base, scratch))
        if arguments.zlab:
            results.append(compare_zlab(arguments.zlab, base, Path(name)))
    lines = [f"{'ok  ' if passed(one) else 'FAIL'} {one}" for one in results]
    finish({"networks": results}, "\n".join(lines), arguments.json)
    return 0 if all(map(passed, results)) else 1


if __name__ == "__main__":
    sys.exit(main())
