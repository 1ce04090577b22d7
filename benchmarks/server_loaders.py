"""Checks that the released draft model classes of vLLM and SGLang load our exports.

    python -m benchmarks.server_loaders --wheels FOLDER [--json OUT]

Wheels are read from the folder, or downloaded into it (`pip download --no-deps`, 0.7 GB; nothing is installed or
copied). Each class is made with stand-ins for the server's layers (benchmarks/peers/serving_parts.py) and loads an
export of a tiny draft with its own name mapping. Fails if an exported tensor is not loaded, or if a parameter that the
target does not provide stays unset. That the tensors give the same logits, every export checks by itself
(formats/proof.py).
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import Qwen3Config

from benchmarks.peers import serving_parts as parts
from benchmarks.report import finish, make_parser
from formats.export import build_export
from formats.options import export_options
from models.base import LoadedBase, load_base
from models.checkpoints import save_draft
from models.identity import read_json
from tests.formats.conftest import EVERY, draft_of
from tests.tiny import make_tiny_base

WHEELS = {"vllm 0.33.0": "vllm", "vllm 0.32.0": "vllm", "sglang 0.5.23": "sglang"}
CLASSES = {
    ("vllm", "eagle"): ("vllm.model_executor.models.llama_eagle", "EagleLlamaForCausalLM"),
    ("vllm", "eagle3"): ("vllm.model_executor.models.llama_eagle3", "Eagle3LlamaForCausalLM"),
    ("vllm", "peagle"): ("vllm.model_executor.models.llama_eagle3", "Eagle3LlamaForCausalLM"),
    ("vllm", "medusa"): ("vllm.model_executor.models.medusa", "Medusa"),
    ("vllm", "dflash"): ("vllm.model_executor.models.qwen3_dflash", "DFlashQwen3ForCausalLM"),
    ("sglang", "eagle"): ("sglang.srt.models.llama_eagle", "LlamaForCausalLMEagle"),
    ("sglang", "eagle3"): ("sglang.srt.models.llama_eagle3", "LlamaForCausalLMEagle3"),
    ("sglang", "dflash"): ("sglang.srt.models.dflash", "DFlashDraftModel"),
}
CONFIG_READERS = {
    ("vllm", "dflash"): "vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils",
    ("sglang", "dflash"): "sglang.srt.speculative.dflash_utils",
}
"""Modules of the servers that the classes read their config with, used as they are."""
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


def build_draft(server: str, module: Any, name: str, config: Any, base: LoadedBase, parallel: bool) -> Any:
    """Instantiate the draft model class like its server."""
    if server == "sglang":
        return getattr(module, name)(config)
    target = SimpleNamespace(
        dtype=torch.float32,
        get_total_num_hidden_layers=lambda: base.num_layers,
        get_num_layers=lambda _: base.num_layers,
        get_vocab_size=lambda: base.vocab_size,
    )
    draft = SimpleNamespace(hf_config=config, model=None, revision=None)
    speculative = SimpleNamespace(draft_model_config=draft, draft=config, parallel_drafting=parallel)
    parts.current.__dict__.update(
        speculative_config=speculative, model_config=target, parallel_config=None, cache_config=None
    )
    return getattr(module, name)(vllm_config=parts.current)


def check(wheel: str, folder: Path, kind: str, base: LoadedBase, scratch: Path) -> dict[str, Any] | None:
    """Export one draft and load it with the server's class: number of tensors, those that were not loaded, and
    parameters that stayed unset. None if server or format do not support it."""
    server, checkpoint = WHEELS[wheel], scratch / kind
    if not checkpoint.exists():
        save_draft(checkpoint, draft_of(kind, base), {"base": "tiny"})
    method = kind.split("-")[0]
    module, name = CLASSES.get((server, method), ("", ""))
    possible = {option.name for option in export_options(checkpoint, base.path) if option.possible}
    text = source(folder, wheel, module) if module and server in possible else None
    if text is None:
        return None
    out = scratch / f"{kind}-{server}"
    if not out.exists():
        build_export(checkpoint, base, server, out)
    config: Any = SimpleNamespace(**read_json(out / "config.json"))
    if reader := CONFIG_READERS.get((server, method)):
        config = Qwen3Config(**vars(config))
        parts.run_source(reader, source(folder, wheel, reader) or "")
    parallel = kind.startswith("peagle")
    model = build_draft(server, parts.run_source(module, text), name, config, base, parallel)
    tensors = load_file(out / "model.safetensors")
    parts.reached.clear()
    model.load_weights((name, tensor) for name, tensor in tensors.items())
    maps = {"t2d"} | ({"d2t"} if getattr(model, "hot_token_id", None) is not None else set())  # read in another way
    if parallel and torch.equal(model.mask_hidden.flatten(), tensors["mask_hidden"].flatten()):
        maps.add("mask_hidden")  # a buffer
    left = sorted(name for name, tensor in tensors.items() if id(tensor) not in parts.reached and name not in maps)
    return {"server": wheel, "draft": kind, "tensors": len(tensors), "left_over": left, "unset": unset(model, kind)}


def unset(model: Any, kind: str) -> list[str]:
    """Parameters that were not loaded, or only partly, except those from the target: embeddings, and the LM head of
    EAGLE-1 and of DFlash with the whole vocabulary; and except vLLM's optional embedding of the mask."""
    shared = kind.startswith("eagle-") or kind in ("eagle", "dflash", "dflash-biased")
    filled = (*FROM_TARGET, "model.mask_embedding", *(("lm_head.weight",) if shared else ()))
    unused = ".hidden_norm.weight" if kind.endswith("-deep") else "?"  # vLLM creates one per layer, uses the first
    params = [(name, param) for name, param in model.named_parameters() if param.is_floating_point()]
    names = [name for name, param in params if id(param) not in parts.reached or bool(param.isnan().any())]
    return [name for name in names if name not in filled and not (unused in name and ".0." not in name)]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--wheels", type=Path, required=True, help="Folder of the wheels.")
    arguments = parser.parse_args()
    arguments.wheels.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        base = load_base(make_tiny_base(Path(scratch) / "base", num_hidden_layers=8))
        checked = [check(wheel, arguments.wheels, kind, base, Path(scratch)) for wheel in WHEELS for kind in EVERY]
    results = [one for one in checked if one]
    wrong = [one for one in results if one["left_over"] or one["unset"]]
    lines = [f"{'FAIL' if one in wrong else 'ok  '} {one}" for one in results]
    finish({"exports": results}, "\n".join(lines), arguments.json)
    return 1 if wrong or not results else 0


if __name__ == "__main__":
    sys.exit(main())
