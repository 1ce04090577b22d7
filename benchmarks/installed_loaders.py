"""Loads exports with packages that can be installed without a GPU: transformers, and in their own environments
speculators and ModelOpt, whose own export is also imported here. Used by benchmarks.server_loaders."""

import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.environments import make_environment
from formats.checkpoint import read_object
from formats.export import build_export
from formats.imports.eagle3 import MODELOPT_TWICE
from formats.imports.run import Conversion
from formats.imports.work import convert
from formats.passages import PROMPTS, passages
from models.base import LoadedBase, load_base
from models.checkpoints import load_draft, save_draft
from models.eagle3 import Eagle3Draft
from models.standalone import StandaloneDraft
from models.starter import STARTER_HEAD, starter_path

NEAR = 1e-4
PEERS = Path(__file__).parent / "peers"


@dataclass
class InstalledModel:
    """One export loaded by one class. `difference`: relative to the largest logit; None if the class was not run."""

    server: str
    draft: str
    tensors: int
    left_over: list[str]
    unset: list[str]
    difference: float | None
    same_answers: bool | None = None
    """Whether answers with this draft model equal plain decoding; None if not tested."""

    @property
    def good(self) -> bool:
        near = self.difference is None or self.difference <= NEAR
        return not self.left_over and not self.unset and near and self.same_answers is not False


def speculators(environments: Path, scratch: Path) -> list[InstalledModel]:
    """The exported starter head, loaded with speculators' `from_pretrained`."""
    base = load_base(starter_path())
    draft = load_draft(STARTER_HEAD, base)
    build_export(STARTER_HEAD, base, "speculators", scratch / "speculators")
    ours = logits(draft, example_states(draft, base, scratch))
    tensors, report = run_in_environment("speculators", environments, scratch / "speculators", scratch)
    counts = (report["tensors"], report["left_over"], report["unset"])
    return [
        InstalledModel(report["version"], "the starter's head", *counts, relative_difference(ours, tensors["logits"]))
    ]


def modelopt(environments: Path, scratch: Path) -> list[InstalledModel]:
    """A random head in ModelOpt's layout, exported here and loaded into the module of its `convert`; and a random head
    written by its exporter, imported here.

    Since 0.41 that module normalises the features twice, which no server does: our drafts are compared with the second
    norm disabled, its own drafts both ways.
    """
    base = load_base(starter_path())
    draft = random_head(base)
    save_draft(scratch / "head", draft, {"base": "starter"})
    build_export(scratch / "head", base, "modelopt", scratch / "modelopt")
    states = example_states(draft, base, scratch)
    tensors, report = run_in_environment("modelopt", environments, scratch / "modelopt", scratch, base.path)
    counts = (report["tensors"], report["left_over"], report["unset"])
    once, twice = (imported(scratch / "exported", base, layout) for layout in ("", MODELOPT_TWICE))
    ours, own, trained = (logits(one, states) for one in (draft, once, twice))
    version = report["version"]
    return [
        InstalledModel(
            version,
            "our export, in its module, features normed once",
            *counts,
            relative_difference(ours, tensors["ours_once"]),
        ),
        InstalledModel(
            version, "its export, imported as servers read it", *counts, relative_difference(own, tensors["own_once"])
        ),
        InstalledModel(
            version, f"its export, imported as {MODELOPT_TWICE}", *counts, relative_difference(trained, tensors["own"])
        ),
    ]


@torch.no_grad()
def transformers(scratch: Path) -> list[InstalledModel]:
    """An exported standalone draft model (11 of the starter's 30 layers) as `assistant_model` of `generate`: compares
    greedy answers to three questions, 48 tokens each, with those without it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, __version__

    base = load_base(starter_path())
    ours = StandaloneDraft.from_base(base, 11)
    save_draft(scratch / "draft", ours, {"base": "starter"})
    build_export(scratch / "draft", base, "huggingface", scratch / "huggingface")
    load_options = {"dtype": torch.float32, "output_loading_info": True}
    draft, info = AutoModelForCausalLM.from_pretrained(scratch / "huggingface", **load_options)
    tokenizer, same, apart_most = AutoTokenizer.from_pretrained(scratch / "huggingface"), True, 0.0
    for question in PROMPTS:
        chat = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        options = {**ids, "do_sample": False, "max_new_tokens": 48}
        same &= torch.equal(base.model.generate(**options), base.model.generate(**options, assistant_model=draft))
        apart_most = max(apart_most, relative_difference(ours.model(**ids).logits, draft(**ids).logits))
    name = f"transformers {__version__} generate(assistant_model=…)"
    counts = (len(draft.state_dict()), sorted(info["unexpected_keys"]), sorted(info["missing_keys"]))
    return [InstalledModel(name, "11 of the starter's layers", *counts, apart_most, same)]


def random_head(base: LoadedBase) -> Eagle3Draft:
    """An EAGLE-3 draft with every sixth token in its vocabulary and random weights."""
    draft = Eagle3Draft.from_base(base, torch.arange(3, base.vocab_size, 6))
    randomise(draft, 7, 0.05)
    return draft


def randomise(module: torch.nn.Module, seed: int, width: float) -> None:
    """Random weights, norms too; `width`: standard deviation of matrices, so that every part affects the logits."""
    generator = torch.Generator().manual_seed(seed)
    for value in module.parameters():
        noise = torch.randn(value.shape, generator=generator)
        value.data = noise * width if value.dim() > 1 else 1 + noise * 0.2


def example_states(draft: Any, base: LoadedBase, scratch: Path) -> dict[str, Tensor]:
    """Concatenated hidden states of the base model on one answer [n, 3H], embeddings of the next tokens [n, H] and
    these tokens [n]; the first two are written to scratch/states.safetensors."""
    passage = next(passages(base, draft.layers_wanted))
    ids = torch.tensor(passage.ids[1:])
    with torch.no_grad():
        embedded = base.embed_tokens(ids).clone()
    states = {"aux": passage.side_by_side(draft.layers_wanted, len(ids)).clone(), "embedded": embedded}
    save_file(states, scratch / "states.safetensors")
    return {**states, "ids": ids}


@torch.no_grad()
def logits(draft: Any, states: dict[str, Tensor]) -> Tensor:
    """Logits [n, V'] of our draft model."""
    features = draft.fuse(states["embedded"][None], tuple(part[None] for part in states["aux"].chunk(3, -1)))
    ids = states["ids"][None]
    return draft.logits(draft(features, ids, torch.arange(ids.shape[1])[None]))[0]


def run_in_environment(
    peer: str, environments: Path, export: Path, scratch: Path, *before: Path
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Run benchmarks/peers/PEER_reads.py in the peer's environment; returns its tensors and its report."""
    python = make_environment(peer, environments) / "bin" / "python"
    words = [*before, export, scratch / "states.safetensors", scratch]
    subprocess.run([python, PEERS / f"{peer}_reads.py", *words], check=True)
    return load_file(scratch / "logits.safetensors"), read_object(scratch / "said.json")


def imported(folder: Path, base: LoadedBase, layout: str = "") -> Any:
    """Import the draft in `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        convert(asdict(Conversion(str(folder), scratch, str(base.path), folder.name, layout=layout)))
        return load_draft(Path(scratch) / "draft", base)


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    """Largest absolute difference of logits, relative to the largest logit."""
    return float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1.0))
