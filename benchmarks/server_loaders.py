"""Checks that the released code of vLLM, SGLang, transformers, speculators and ModelOpt loads our exports.

    python -m benchmarks.server_loaders --wheels FOLDER [--environments FOLDER] [--json OUT]

Wheels are read from the folder, or downloaded into it (`pip download --no-deps`, 0.7 GB; nothing is installed or
copied). Each draft model class runs with stand-ins for the server's layers (benchmarks/peers/serving_parts.py), loads
an export with its own name mapping, and, if possible, computes draft logits. With --environments, speculators and
nvidia-modelopt are installed into their own environments there (benchmarks/installed_loaders.py): speculators loads the
exported starter head with `from_pretrained`, ModelOpt loads a head of ours and exports its own.

Fails if an exported tensor is not loaded, if a parameter that the target does not provide stays unset, if logits differ
by more than 1e-4 of the largest one, or if greedy answers with and without the draft model differ.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from benchmarks.installed_loaders import InstalledModel, modelopt, relative_difference, speculators, transformers
from benchmarks.peers import serving_parts as parts
from formats.checkpoint import read_object
from formats.export import build_export
from formats.options import export_options
from formats.passages import Passage, passages
from models.base import LoadedBase, load_base
from models.checkpoints import load_draft as load
from models.checkpoints import save_draft
from models.tiny import make_tiny_base
from speculoos.files import write_json
from tests.formats.conftest import EVERY, draft_of

WHEELS = {"vllm 0.33.0": "vllm", "vllm 0.32.0": "vllm", "sglang 0.5.23": "sglang"}
CLASSES = {
    ("vllm", "eagle"): ("vllm.model_executor.models.llama_eagle", "EagleLlamaForCausalLM"),
    ("vllm", "eagle3"): ("vllm.model_executor.models.llama_eagle3", "Eagle3LlamaForCausalLM"),
    ("vllm", "medusa"): ("vllm.model_executor.models.medusa", "Medusa"),
    ("sglang", "eagle"): ("sglang.srt.models.llama_eagle", "LlamaForCausalLMEagle"),
    ("sglang", "eagle3"): ("sglang.srt.models.llama_eagle3", "LlamaForCausalLMEagle3"),
}
FROM_TARGET = ("embed_tokens.weight", "model.embed_tokens.weight")


def source(folder: Path, wheel: str, module: str) -> str | None:
    """Source code of a module in a wheel; None if the wheel has no such module."""
    name, version = wheel.split()
    file = f"{name}-{version}-*.whl"
    if not [*folder.glob(file)]:
        command = ["pip", "download", "-q", "--no-deps", "-d", str(folder), f"{name}=={version}"]
        subprocess.run([sys.executable, "-m", *command], check=True)
    path = module.replace(".", "/") + ".py"
    with zipfile.ZipFile(next(folder.glob(file))) as archive:
        return archive.read(path).decode() if path in archive.namelist() else None


def build_draft(server: str, module: Any, name: str, config: Any, base: LoadedBase) -> Any:
    """Instantiate the draft model class like its server."""
    if server == "sglang":
        return getattr(module, name)(config)
    target = SimpleNamespace(
        dtype=torch.float32,
        get_total_num_hidden_layers=lambda: base.num_layers,
        get_num_layers=lambda _: base.num_layers,
        get_vocab_size=lambda: base.vocab_size,
    )
    draft = SimpleNamespace(hf_config=config)
    speculative = SimpleNamespace(draft_model_config=draft, draft=config, parallel_drafting=False)
    parts.current.__dict__.update(
        speculative_config=speculative, model_config=target, parallel_config=None, cache_config=None
    )
    return getattr(module, name)(vllm_config=parts.current)


def check(wheel: str, folder: Path, kind: str, base: LoadedBase, scratch: Path) -> InstalledModel | None:
    """Export one draft, load it with the server's class and run it. None if server or format do not support it."""
    server = WHEELS[wheel]
    checkpoint = scratch / kind
    if not checkpoint.exists():
        save_draft(checkpoint, draft_of(kind, base), {"base": "tiny"})
    module, name = CLASSES.get((server, kind.split("-")[0]), ("", ""))
    possible = {option.name for option in export_options(checkpoint, base.path) if option.possible}
    text = source(folder, wheel, module) if module and server in possible else None
    if text is None:
        return None
    out = scratch / f"{kind}-{server}"
    if not out.exists():
        build_export(checkpoint, base, server, out)
    config = SimpleNamespace(**read_object(out / "config.json"))
    model = build_draft(server, parts.run_source(module, text), name, config, base)
    tensors = load_file(out / "model.safetensors")
    parts.reached.clear()
    model.load_weights((name, tensor) for name, tensor in tensors.items())
    over, missed = left_over(tensors, model), unset(model, kind)
    return InstalledModel(wheel, kind, len(tensors), over, missed, compare(server, model, load(checkpoint, base), base))


def left_over(tensors: dict[str, torch.Tensor], model: Any) -> list[str]:
    """Tensors that were not loaded into a parameter, except known vocabulary maps."""
    maps = {"t2d"} | ({"d2t"} if getattr(model, "hot_token_id", None) is not None else set())
    maps |= {"token_map"} if getattr(model, "token_map", None) is not None else set()
    return sorted(name for name, tensor in tensors.items() if id(tensor) not in parts.reached and name not in maps)


def unset(model: Any, kind: str) -> list[str]:
    """Parameters that were not loaded, except those from the target: embeddings, and EAGLE-1's LM head."""
    filled = (*FROM_TARGET, *(("lm_head.weight",) if kind.startswith("eagle-") or kind == "eagle" else ()))
    unused = ".hidden_norm.weight" if kind == "eagle3-deep" else "?"  # vLLM creates one per layer, uses the first
    names = [name for name, param in model.named_parameters() if param.is_floating_point() and not_loaded(param)]
    return [name for name in names if name not in filled and not (unused in name and ".0." not in name)]


def not_loaded(param: torch.nn.Parameter) -> bool:
    """Whether a parameter was not loaded, or only partly."""
    return id(param) not in parts.reached or bool(param.isnan().any())


@torch.no_grad()
def compare(server: str, model: Any, draft: Any, base: LoadedBase) -> float | None:
    """Largest difference between the class's and our logits, relative to the largest logit; None if it cannot run."""
    if draft.method == "eagle" and server == "sglang":
        return None  # its layers pass the residual through a server mechanism
    worst = 0.0
    for passage in passages(base, getattr(draft, "layers_wanted", ())):
        off = relative_difference(*logits(server, model, draft, base, passage))
        worst = max(worst, off if off == off else float("inf"))
    return worst


def logits(
    server: str, model: Any, draft: Any, base: LoadedBase, passage: Passage
) -> tuple[torch.Tensor, torch.Tensor]:
    """(our, their) logits at all positions of a passage."""
    n = len(passage.ids) - 1
    if draft.method == "medusa":
        hidden = passage.hidden
        ours = draft(hidden).flatten(0, 1)
        theirs = torch.cat(model.compute_logits(model(hidden)))
        return ours, theirs[:, draft.draft_ids]
    ids, positions = torch.tensor(passage.ids[1:]), torch.arange(n)
    aux = tuple(passage.outputs[layer][None, :n] for layer in draft.layers_wanted)
    features = draft.fuse(passage.hidden[None, :n], aux)
    ours = draft.logits(draft(features, ids[None], positions[None]))[0]
    if model.model.embed_tokens.weight.isnan().any():
        model.model.embed_tokens.weight.data = base.embed_tokens.weight.data
    states = torch.cat([state[0] for state in aux], -1) if aux else passage.hidden[:n]
    if server == "sglang":
        return ours, F.linear(sglang_hidden(model, ids, positions, states), model.lm_head.weight)
    if draft.method == "eagle":
        return ours, base.logits(model(ids, positions, states)[0])
    hidden, _ = model(ids, positions, model.combine_hidden_states(states))
    return ours, model.compute_logits(hidden)[:, draft.draft_ids]


def sglang_hidden(model: Any, ids: torch.Tensor, positions: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Hidden states that SGLang multiplies with the LM head."""
    batch = SimpleNamespace(
        mm_input_embeds=None,
        forward_mode=SimpleNamespace(is_extend=lambda: False),
        spec_info=SimpleNamespace(hidden_states=states),
    )
    return model.model(ids, positions, batch)[0]


def installed(environments: Path | None, scratch: Path) -> Iterator[InstalledModel]:
    """Results of installed packages: transformers, and those in `environments` if set."""
    for peer in (transformers, speculators, modelopt):
        own = scratch / f"in-{peer.__name__}"
        own.mkdir()
        if peer is transformers:
            yield from peer(own)
        elif environments is not None:
            yield from peer(environments.resolve(), own)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True, help="Folder of the wheels.")
    parser.add_argument(
        "--environments", type=Path, help="Folder for those of speculators and ModelOpt; left out: not run."
    )
    parser.add_argument("--only-environments", action="store_true", help="Leave the classes of the servers out.")
    parser.add_argument("--json", type=Path, help="Write the findings there.")
    arguments = parser.parse_args()
    arguments.wheels.mkdir(parents=True, exist_ok=True)
    results = []
    with tempfile.TemporaryDirectory() as made_folder:
        scratch = Path(made_folder)
        base = load_base(make_tiny_base(scratch / "base", num_hidden_layers=8))
        for wheel in () if arguments.only_environments else WHEELS:
            for kind in EVERY:
                if one := check(wheel, arguments.wheels, kind, base, scratch):
                    results.append(one)
                    print(f"{'ok  ' if one.good else 'FAIL'} {one}", flush=True)
        for one in installed(arguments.environments, scratch):
            results.append(one)
            print(f"{'ok  ' if one.good else 'FAIL'} {one}", flush=True)
    if arguments.json:
        write_json(arguments.json, [asdict(one) for one in results])
    return 0 if results and all(one.good for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
