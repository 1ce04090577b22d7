"""A standalone draft as a Hugging Face folder: the model's config and weights, the base model's tokenizer."""

import json
from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import CardFacts
from formats.plan import ExportPlan, from_entry
from models.checkpoints import SPECULOOS_KEYS
from models.foreign import without_unsafe_keys
from models.identity import EXTRA_TOKENIZER_FILES, TEMPLATES, TOKENIZER_FILES

TOKENIZER = (*TOKENIZER_FILES, *TEMPLATES, *EXTRA_TOKENIZER_FILES, "tokenizer_config.json")


def huggingface(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """Tensors already have transformers' names. The generation config has no sampling settings: the caller chooses
    them for an assistant model."""
    values = {key: value for key, value in checkpoint.config.items() if key not in (*SPECULOOS_KEYS, "torch_dtype")}
    config = without_unsafe_keys({**values, "dtype": checkpoint.dtype, "architectures": _architectures(values)})
    tokenizer = [path for name in TOKENIZER if (path := checkpoint.base_path / name).is_file()]
    tensors = [from_entry(entry) for entry in checkpoint.tensors.values()]
    return ExportPlan(
        tensors, config, copies=tuple(tokenizer), texts={"generation_config.json": _generation(checkpoint)}
    )


def _architectures(config: dict[str, Any]) -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return config.get("architectures") or [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config["model_type"]]]


def _generation(checkpoint: CheckpointFiles) -> str:
    path = checkpoint.path / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    tokens = {
        key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if config.get(key) is not None
    }
    return json.dumps(tokens or {"eos_token_id": checkpoint.base.get("eos_token_id")}, indent=2) + "\n"
