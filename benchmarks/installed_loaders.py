"""Exports read by packages that install on a processor: transformers, which is here anyway, and each in an environment
of its own speculators and ModelOpt, whose own export is read here in turn. Parts of benchmarks.server_loaders."""

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
from formats.export import build
from formats.imports.eagle3 import TWICE
from formats.imports.run import Conversion
from formats.imports.work import convert
from formats.passages import PROMPTS, passages
from models.base import LoadedBase, load_base
from models.checkpoints import load_draft, save_draft
from models.eagle3 import Eagle3Draft
from models.standalone import StandaloneDraft
from models.starter import HEAD, starter_path

NEAR = 1e-4
PEERS = Path(__file__).parent / "peers"


@dataclass
class InstalledModel:
    """One export in one class. `difference`: of the largest logit, None where the class was not run."""

    server: str
    draft: str
    tensors: int
    left_over: list[str]
    unset: list[str]
    difference: float | None
    same_answers: bool | None = None
    """Whether answers drafted with it are those of plain decoding, where some were asked for."""

    @property
    def good(self) -> bool:
        near = self.difference is None or self.difference <= NEAR
        return not self.left_over and not self.unset and near and self.same_answers is not False


def speculators(environments: Path, scratch: Path) -> list[InstalledModel]:
    """The starter's head, exported here, read by speculators' `from_pretrained`."""
    base = load_base(starter_path())
    draft = load_draft(HEAD, base)
    build(HEAD, base, "speculators", scratch / "speculators")
    ours = logits(draft, given(draft, base, scratch))
    found, said = read_there("speculators", environments, scratch / "speculators", scratch)
    counts = (said["tensors"], said["left_over"], said["unset"])
    return [InstalledModel(said["version"], "the starter's head", *counts, apart(ours, found["logits"]))]


def modelopt(environments: Path, scratch: Path) -> list[InstalledModel]:
    """A head for the starter in the shape that ModelOpt has, exported here and loaded into the module of its `convert`;
    and a head that its exporter wrote, imported here. Every weight is random, those of norms too.

    Since 0.41 that module norms the features twice, which no server does: drafts of ours are compared with it where its
    decoder layer's own norm lets the features pass, drafts of its own in both ways."""
    base = load_base(starter_path())
    draft = random_head(base)
    save_draft(scratch / "head", draft, {"base": "starter"})
    build(scratch / "head", base, "modelopt", scratch / "modelopt")
    states = given(draft, base, scratch)
    found, said = read_there("modelopt", environments, scratch / "modelopt", scratch, base.path)
    counts = (said["tensors"], said["left_over"], said["unset"])
    once, twice = (imported(scratch / "exported", base, layout) for layout in ("", TWICE))
    ours, own, trained = (logits(one, states) for one in (draft, once, twice))
    told = said["version"]
    return [
        InstalledModel(
            told, "our export, in its module, features normed once", *counts, apart(ours, found["ours_once"])
        ),
        InstalledModel(told, "its export, imported as servers read it", *counts, apart(own, found["own_once"])),
        InstalledModel(told, f"its export, imported as {TWICE}", *counts, apart(trained, found["own"])),
    ]


@torch.no_grad()
def transformers(scratch: Path) -> list[InstalledModel]:
    """A standalone draft of eleven of the starter's thirty layers, exported, given to `generate` as `assistant_model`:
    greedy answers to three questions beside those without it, 48 tokens each."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, __version__

    base = load_base(starter_path())
    ours = StandaloneDraft.from_base(base, 11)
    save_draft(scratch / "draft", ours, {"base": "starter"})
    build(scratch / "draft", base, "huggingface", scratch / "huggingface")
    read = {"dtype": torch.float32, "output_loading_info": True}
    draft, found = AutoModelForCausalLM.from_pretrained(scratch / "huggingface", **read)
    tokenizer, same, apart_most = AutoTokenizer.from_pretrained(scratch / "huggingface"), True, 0.0
    for question in PROMPTS:
        chat = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        asked = {**ids, "do_sample": False, "max_new_tokens": 48}
        same &= torch.equal(base.model.generate(**asked), base.model.generate(**asked, assistant_model=draft))
        apart_most = max(apart_most, apart(ours.model(**ids).logits, draft(**ids).logits))
    name = f"transformers {__version__} generate(assistant_model=…)"
    counts = (len(draft.state_dict()), sorted(found["unexpected_keys"]), sorted(found["missing_keys"]))
    return [InstalledModel(name, "11 of the starter's layers", *counts, apart_most, same)]


def random_head(base: LoadedBase) -> Eagle3Draft:
    """EAGLE-3 over every sixth token."""
    draft = Eagle3Draft.from_base(base, torch.arange(3, base.vocab_size, 6))
    randomise(draft, 7, 0.05)
    return draft


def randomise(module: torch.nn.Module, seed: int, width: float) -> None:
    """Random weights, norms too; matrices `width` wide, so that every part has a say in the logits."""
    generator = torch.Generator().manual_seed(seed)
    for value in module.parameters():
        noise = torch.randn(value.shape, generator=generator)
        value.data = noise * width if value.dim() > 1 else 1 + noise * 0.2


def given(draft: Any, base: LoadedBase, scratch: Path) -> dict[str, Tensor]:
    """Hidden states of the base in one answer, side by side [n, 3H], its embeddings of the tokens after them [n, H] and
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
    """The draft's own [n, V']."""
    features = draft.fuse(states["embedded"][None], tuple(part[None] for part in states["aux"].chunk(3, -1)))
    ids = states["ids"][None]
    return draft.logits(draft(features, ids, torch.arange(ids.shape[1])[None]))[0]


def read_there(
    peer: str, environments: Path, export: Path, scratch: Path, *before: Path
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What benchmarks/peers/PEER_reads.py found in the environment of the peer: tensors, and what it said."""
    python = make_environment(peer, environments) / "bin" / "python"
    words = [*before, export, scratch / "states.safetensors", scratch]
    subprocess.run([python, PEERS / f"{peer}_reads.py", *words], check=True)
    return load_file(scratch / "logits.safetensors"), read_object(scratch / "said.json")


def imported(folder: Path, base: LoadedBase, layout: str = "") -> Any:
    """The draft in `folder` as ours."""
    with tempfile.TemporaryDirectory() as scratch:
        convert(asdict(Conversion(str(folder), scratch, str(base.path), folder.name, layout=layout)))
        return load_draft(Path(scratch) / "draft", base)


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference of a logit, of the largest one."""
    return float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1.0))
