"""Do imported drafts compute what they compute at home? Network code of the EAGLE and Medusa repositories, and ours.

    python -m benchmarks.foreign_networks --eagle CHECKOUT --medusa CHECKOUT [--json OUT]

Checkouts are `git clone`s of github.com/SafeAILab/EAGLE and github.com/FasterDecoding/Medusa, of which nothing is
copied. Their networks get random weights, are saved as those repositories save them, imported here for a tiny random
base, and compared in fp32: a chain of four draft steps for EAGLE, all heads for Medusa. Fails beyond 1e-4.

EAGLE's modules import as they are. Medusa's stand beside a modelling file for transformers 4.34, so only their classes
are taken out of the source and run.
"""

import argparse
import ast
import importlib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.installed_loaders import imported, randomise
from models.base import Base, load_base
from models.tiny import make_tiny_base
from speculoos.files import write_json

NEAR, PLACES, STEPS, WIDTH = 1e-4, 24, 4, 0.2
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "pretraining_tp": 1,
    "pad_token_id": 0,
    "rope_scaling": None,
    "rope_theta": 10000.0,
}
LINEAR = {"rope_scaling": {"type": "linear", "factor": 2.0}}


@dataclass
class Case:
    """One network: what it is called, and the largest difference of a logit."""

    name: str
    difference: float
    same_tokens: bool

    @property
    def passed(self) -> bool:
        return self.difference <= NEAR and self.same_tokens


def save(folder: Path, config: dict[str, Any], state: dict[str, Tensor], file: str) -> Path:
    """A folder as its repository leaves it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write = save_file if file.endswith(".safetensors") else torch.save
    write({name: value.clone().contiguous() for name, value in state.items()}, folder / file)
    return folder


def eagle_cases(checkout: Path, base: Base, scratch: Path) -> Iterator[Case]:
    """EAGLE-1 and EAGLE-3 in the shapes they are published in."""
    sys.path.insert(0, str(checkout))
    first, third = (importlib.import_module(f"eagle.model.{name}").Model for name in ("cnets1", "cnets"))
    some = {"draft_vocab_size": 160}
    narrower = {**some, "hidden_size": 16, "target_hidden_size": base.hidden_size}
    cases = (
        ("EAGLE-1", partial(first, bias=True), {}),
        ("EAGLE-1 without bias", partial(first, bias=False), {"bias": False}),
        ("EAGLE-1, two layers, qkv bias", partial(first, bias=True), {"num_hidden_layers": 2, "qkv_bias": True}),
        ("EAGLE-1, linear rope", partial(first, bias=True), LINEAR),
        ("EAGLE-3", third, some),
        ("EAGLE-3, all tokens", third, {"draft_vocab_size": base.vocab_size}),
        ("EAGLE-3, linear rope", third, {**some, **LINEAR}),
        ("EAGLE-3, narrower than its base", third, narrower),
    )
    for number, (name, make, more) in enumerate(cases):
        config = {**SIZES, "vocab_size": base.vocab_size, **more}
        head = None if make is third else base.lm_head
        yield eagle_case(name, make(SimpleNamespace(**config)), config, base, scratch / f"eagle{number}", head)


@torch.no_grad()
def eagle_case(name: str, network: Any, config: dict[str, Any], base: Base, folder: Path, head: Any) -> Case:
    """Random weights, saved, imported, and a chain drafted by both. `head`: the base's, for EAGLE-1."""
    randomise(network, 3, WIDTH)
    whole = config.get("draft_vocab_size", base.vocab_size) == base.vocab_size
    if not whole:
        ids = torch.randperm(base.vocab_size, generator=torch.Generator().manual_seed(1))[: config["draft_vocab_size"]]
        network.d2t.copy_(ids.sort().values - torch.arange(len(ids)))
        network.t2d[ids] = True
    network.eval().reset()
    draft = imported(save(folder, config, network.state_dict(), "pytorch_model.bin"), base)
    ids = torch.randint(0, base.vocab_size, (1, PLACES + 1), generator=torch.Generator().manual_seed(2))
    hidden, aux = base.forward_hidden(ids[:, :PLACES], layers=draft.layers_wanted)
    theirs = chain_at_home(network, torch.cat(aux, -1) if aux else hidden, ids[:, 1:], head)
    ours = chain_here(draft, draft.fuse(hidden, aux), ids[:, 1:])
    tokens = [draft.to_target(one.argmax(-1)).item() for one in ours]
    there = [draft.to_target(one.argmax(-1)).item() for one in theirs]
    return Case(name, max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)), tokens == there)


def chain_at_home(network: Any, features: Tensor, ids: Tensor, head: Any) -> list[Tensor]:
    """Their logits of STEPS greedy draft steps, over their cache."""

    def score(out: Tensor) -> Tensor:
        return head(out) if head is not None else network.lm_head(network.norm(out))

    out, cache = network(features, input_ids=ids, use_cache=True)
    scores = [score(out[0, -1])]
    for _ in range(STEPS - 1):
        best = scores[-1].argmax(-1)
        token = best if head is not None or not hasattr(network, "d2t") else best + network.d2t[best]
        out, cache = network(out[:, -1:], input_ids=token.view(1, 1), past_key_values=cache, use_cache=True)
        scores.append(score(out[0, -1]))
    return scores


def chain_here(draft: Any, features: Tensor, ids: Tensor) -> list[Tensor]:
    """Ours, each step over the whole row anew."""
    scores: list[Tensor] = []
    for _ in range(STEPS):
        out = draft(features, ids, torch.arange(ids.shape[1])[None])
        scores.append(draft.logits(out)[0, -1])
        features = torch.cat([features, out[:, -1:]], 1)
        ids = torch.cat([ids, draft.to_target(scores[-1].argmax(-1)).view(1, 1)], 1)
    return scores


def classes(file: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Classes of a source file, run without the rest of it."""
    tree = ast.parse(file.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in names]
    tokenizer = SimpleNamespace(from_pretrained=lambda *_: None)
    namespace: dict[str, Any] = {"torch": torch, "nn": nn, "AutoTokenizer": tokenizer, "mc_sim_7b_63": ()}
    exec(compile(tree, str(file), "exec"), namespace)
    return namespace


def medusa_cases(checkout: Path, base: Base, scratch: Path) -> Iterator[Case]:
    """The present layout (heads end in matrices) as pickle and safetensors, and version 2 of the legacy trainer."""
    present = classes(checkout / "medusa/model/medusa_model.py", ("ResBlock", "MedusaModelABC"))["MedusaModelABC"]
    legacy = classes(checkout / "medusa/model/medusa_model_legacy.py", ("ResBlock", "MedusaModel"))["MedusaModel"]

    class Anchor(nn.Module):
        """What the Medusa repository mixes its heads into: a model with a backbone and a head."""

        def __init__(self, config: Any):
            super().__init__()
            self.config, self.model, self.lm_head = config, base.backbone, base.lm_head

    host = type("Host", (present, Anchor), {})
    sizes = {"hidden_size": base.hidden_size, "vocab_size": base.vocab_size, "_name_or_path": "tiny"}
    for number, (name, layers, file) in enumerate(
        (
            ("Medusa, pickle", 1, "medusa_lm_head.pt"),
            ("Medusa, safetensors", 1, "medusa_lm_head.safetensors"),
            ("Medusa, two blocks", 2, "medusa_lm_head.pt"),
        )
    ):
        module = host(SimpleNamespace(medusa_num_heads=3, medusa_num_layers=layers, **sizes))
        yield medusa_case(name, module, layers, file, base, scratch / f"medusa{number}", {"medusa_forward": True})
    module = legacy(base.model, 3, 1, "tiny")
    yield medusa_case("Medusa, version 2", module, 1, "medusa_lm_head.pt", base, scratch / "medusa-v2", {})


@torch.no_grad()
def medusa_case(name: str, network: Any, layers: int, file: str, base: Base, folder: Path, how: dict[str, Any]) -> Case:
    """Random heads, saved, imported, and all logits on the base's hidden states."""
    randomise(network.medusa_head, 5, WIDTH)
    config = {"medusa_num_heads": 3, "medusa_num_layers": layers, "base_model_name_or_path": "tiny"}
    draft = imported(save(folder, config, network.medusa_head.state_dict(), file), base)
    ids = torch.randint(0, base.vocab_size, (1, PLACES), generator=torch.Generator().manual_seed(2))
    theirs = network(input_ids=ids, **how)
    ours = draft(base.forward_hidden(ids)[0])
    return Case(name, float((ours - theirs).abs().max()), torch.equal(ours.argmax(-1), theirs.argmax(-1)))


def run(eagle: str, medusa: str) -> list[Case]:
    """All cases of the checkouts that are given."""
    results: list[Case] = []
    with tempfile.TemporaryDirectory() as folder:
        base = load_base(make_tiny_base(Path(folder) / "tiny", num_hidden_layers=8))
        if eagle:
            results += eagle_cases(Path(eagle).resolve(), base, Path(folder))
        if medusa:
            results += medusa_cases(Path(medusa).resolve(), base, Path(folder))
    return results


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.foreign_networks", description=__doc__.split("\n")[0])
    parser.add_argument("--eagle", default="", help="checkout of SafeAILab/EAGLE")
    parser.add_argument("--medusa", default="", help="checkout of FasterDecoding/Medusa")
    parser.add_argument("--json", default="", help="file for the figures")
    args = parser.parse_args(argv)
    cases = run(args.eagle, args.medusa)
    for case in cases:
        print(f"{case.name:36} {case.difference:.1e}  {'same' if case.passed else 'DIFFERS'}")
    if args.json:
        write_json(args.json, [{**vars(case), "passed": case.passed} for case in cases])
    return 0 if cases and all(case.passed for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
