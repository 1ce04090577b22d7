"""Which layout a source has, by its config and the names of its tensors, and who reads it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from formats.imports import causal, eagle, eagle3, medusa, own
from formats.imports.base import BaseOutline
from formats.imports.draft import ReadDraft
from formats.imports.layers import plain_name
from formats.imports.source import Source
from speculoos.errors import BadInput, Unsupported


@dataclass(frozen=True)
class Layout:
    """A way to write a draft: what people call it, and `read(source, base, name)`."""

    title: str
    read: Callable[[Source, BaseOutline, str], ReadDraft]


LAYOUTS: dict[str, Layout] = {
    "speculoos": Layout("Speculoos checkpoint", own.read),
    "medusa": Layout("Medusa repository", medusa.read),
    "vllm-medusa": Layout("Medusa for vLLM", medusa.read),
    "eagle": Layout("EAGLE-1 (EAGLE repository, vLLM, SGLang)", eagle.read),
    "eagle3": Layout("EAGLE-3 (EAGLE repository, SpecForge, SGLang)", eagle3.read),
    "modelopt-eagle3": Layout("EAGLE-3 (ModelOpt)", eagle3.read),
    eagle3.TWICE: Layout("EAGLE-3 (ModelOpt since 0.41, as it was trained)", eagle3.read),
    "vllm-eagle3": Layout("EAGLE-3 (vLLM)", eagle3.read),
    "speculators": Layout("EAGLE-3 (speculators)", eagle3.read),
    "model": Layout("causal language model", causal.read),
}


def detect(source: Source) -> str:
    """The name of its layout. Raises Unsupported for a draft of a kind that is not known here."""
    config, names = source.config, {plain_name(name) for name in source.entries}
    if config.get("speculoos_method"):
        return "speculoos"
    if kind := config.get("speculators_model_type"):
        if kind != "eagle3":
            raise Unsupported(
                f"{source.where}: speculators_model_type {str(kind)[:40]!r} is not known here; eagle3 is."
            )
        return "speculators"
    if medusa.is_medusa(set(source.entries)):
        return "vllm-medusa" if any(name.startswith("blocks.") for name in names) else "medusa"
    if "fc.weight" in names:
        return _eagle(source, config, names)
    if any(name.endswith("embed_tokens.weight") or "layers.0." in name or ".h.0." in name for name in source.entries):
        return "model"
    first = next(iter(source.entries), "")
    raise Unsupported(
        f"{source.name}: is no draft of a kind known here (its first tensor is {first}); "
        f"known are {', '.join(layout.title for layout in LAYOUTS.values())}."
    )


def _eagle(source: Source, config: dict[str, Any], names: set[str]) -> str:
    if not names & {"layers.0.hidden_norm.weight", "d2t", "t2d"}:
        return "eagle"
    architectures = config.get("architectures") or [""]
    if str(architectures[0]) in ("Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM", "LlamaEagle3ForCausalLM"):
        return "vllm-eagle3"
    first = any(name.startswith("midlayer.") for name in source.entries)
    return "modelopt-eagle3" if not first and "t2d" not in names else "eagle3"


def find_layout(source: Source, asked: str) -> str:
    """`asked`, or the one detected where it is empty. Raises BadInput for an unknown one."""
    if asked and asked not in LAYOUTS:
        raise BadInput(f"--format {asked}: expected one of {', '.join(LAYOUTS)}.")
    return asked or detect(source)
