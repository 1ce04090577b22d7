"""Tensor names of each project, detection of a draft's layout, and the fields of a third party's config.json. No torch,
because pages use it too."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from speculoos.errors import BadInput, Unsupported

TITLES = {
    "speculoos": "Speculoos checkpoint",
    "medusa": "Medusa repository",
    "vllm-medusa": "Medusa for vLLM",
    "eagle": "EAGLE-1 (EAGLE repository, vLLM, SGLang)",
    "eagle3": "EAGLE-3 (EAGLE repository, SpecForge, SGLang)",
    "modelopt-eagle3": "EAGLE-3 (ModelOpt)",
    "modelopt-eagle3-twice": "EAGLE-3 (ModelOpt since 0.41, as it was trained)",
    "vllm-eagle3": "EAGLE-3 (vLLM)",
    "speculators": "EAGLE-3 (speculators)",
    "peagle": "P-EAGLE (speculators, vLLM)",
    "dflash": "DFlash (z-lab, SpecForge, vLLM, SGLang, transformers)",
    "speculators-dflash": "DFlash (speculators)",
    "model": "causal language model",
}
"""Title of each layout."""
SECTIONS = ("eagle_config", "dflash_config", "transformer_layer_config", "text_config", "medusa")
"""Sections of a config with nested keys, used if the top level does not have the key."""
HEADS = re.compile(r"^(?:model\.)?medusa_heads?\.")
MTP = re.compile(r"(?:^|\.)(?:mtp(?:_layers|_block)?\.|eh_proj\.)")
FIRST_LAYER = re.compile(r"(?:^|\.)layers\.0\.")
LINEAR = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
VLLM = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
MATRIX = re.compile(r"(\d+)\.(\d+)\.weight")
PREFIXES = ("draft_model.", "eagle_module.", "model.")
SPECULATORS = {"eagle3": "speculators", "peagle": "peagle", "dflash": "speculators-dflash"}
"""{speculators_model_type: layout}."""
REQUIRED: Any = object()
DFLASH = ("DFlashDraftModel", "MuseGlimmerAssistantModel")
NEWER_BLOCKS = ("DSpark", "DFlash2")
"""Methods whose drafts are DFlash's with more parts, as they are named in architectures."""
VLLM_EAGLE3 = ("Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM", "LlamaEagle3ForCausalLM")


def plain_name(name: str) -> str:
    """A tensor's name in vLLM: without a trainer's prefix, `layers.0.` instead of `midlayer.`."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return re.sub(r"^midlayer\.", "layers.0.", name)


def medusa_name(name: str) -> str:
    """A tensor's name in `models.medusa`."""
    name = HEADS.sub("", name)
    if match := LINEAR.fullmatch(name) or VLLM.fullmatch(name):
        return f"blocks.{match[1]}.{match[2]}.linear.{match[3]}"
    if match := MATRIX.fullmatch(name):
        return f"lm_heads.{match[1]}.weight"
    return name


def named_base_of(config: Mapping[str, Any]) -> Any:
    """The base model in a config of the Medusa repository or of speculators; None if there is none."""
    section = config.get("speculators_config")
    verifier = section.get("verifier") if isinstance(section, dict) else None
    named = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return config.get("base_model_name_or_path") or named


def detect(config: Mapping[str, Any], names: Collection[str], shown: str) -> str:
    """The layout of a draft with this config and these tensor names, called `shown`. Raises Unsupported if unknown."""
    plain = {plain_name(name) for name in names}
    if config.get("speculoos_method"):
        return "speculoos"
    own = {name for name in names if MTP.search(name)}
    if config.get("speculators_model_type") == "mtp" or (
        own and not any(FIRST_LAYER.search(n) for n in {*names} - own)
    ):
        raise Unsupported(
            f"{shown}: these are multi-token prediction (MTP) layers, which belong to a base model; add the base model "
            "that has them in its files, and draft with the drafter mtp."
        )
    architecture = str((config.get("architectures") or [""])[0])
    if kind := config.get("speculators_model_type"):
        if kind not in SPECULATORS:
            raise Unsupported(
                f"{shown}/config.json: speculators_model_type {str(kind)[:40]!r} is not supported; supported are "
                f"{', '.join(SPECULATORS)}."
            )
        return SPECULATORS[kind]
    if newer := next((name for name in NEWER_BLOCKS if name in architecture), ""):
        raise Unsupported(f"{shown}/config.json: {architecture[:60]}: {newer} is not supported; DFlash is.")
    if config.get("dflash_config") or architecture in DFLASH:
        return "dflash"
    heads = [HEADS.sub("", name) for name in names]
    blocks = any(LINEAR.fullmatch(name) or VLLM.fullmatch(name) for name in heads)
    if blocks or any(HEADS.match(name) and MATRIX.fullmatch(HEADS.sub("", name)) for name in names):
        return "vllm-medusa" if any(name.startswith("blocks.") for name in plain) else "medusa"
    if "mask_hidden" in plain:
        return "peagle"
    if "fc.weight" in plain:
        if not plain & {"layers.0.hidden_norm.weight", "d2t", "t2d"}:
            return "eagle"
        if architecture in VLLM_EAGLE3:
            return "vllm-eagle3"
        midlayer = any(name.startswith("midlayer.") for name in names)
        return "modelopt-eagle3" if not midlayer and "t2d" not in plain else "eagle3"
    if any(name.endswith("embed_tokens.weight") or "layers.0." in name or ".h.0." in name for name in names):
        return "model"
    raise Unsupported(
        f"{shown}: not a supported draft (its first tensor is {next(iter(names), '')}); "
        f"supported are {', '.join(TITLES.values())}."
    )


class Fields:
    """A config with its nested sections; the value of a key is taken from the first section that has it. Numbers and
    flags raise BadInput for a value of another type."""

    def __init__(self, name: str, *sections: Any):
        """`name` is the prefix of messages, such as `heads/config.json`. Sections that are not objects are ignored."""
        self.name = name
        self.sections = [section for section in sections if isinstance(section, dict)]

    def get(self, key: str, default: Any = None) -> Any:
        """The first value that is not null."""
        return next((s[key] for s in self.sections if s.get(key) is not None), default)

    def number(self, key: str, default: Any = REQUIRED) -> int:
        """A whole number of at least 1."""
        value = self.get(key, default)
        if value is REQUIRED:
            raise BadInput(f"{self.name}: {key} is missing; add the value that the draft was trained with.")
        if value is not default and (type(value) is not int or not 0 < value < 1 << 31):
            raise self._expected(key, "a whole number above 0", value)
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise self._expected(key, "a number above 0", value)
        return float(value)

    def flag(self, key: str) -> bool:
        """False if it is missing."""
        value = self.get(key, False)
        if not isinstance(value, bool):
            raise self._expected(key, "true or false", value)
        return value

    def text(self, key: str) -> str:
        """A string; "" if it is missing or not a string."""
        value = self.get(key, "")
        return value if isinstance(value, str) else ""

    def _expected(self, key: str, kind: str, value: Any) -> BadInput:
        return BadInput(f"{self.name}: {key}: expected {kind}, got {str(value)[:60]!r}.")
