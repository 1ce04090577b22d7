"""The tensors and the config of an export, by method and format, as its server loads them. No torch at import."""

import json
from dataclasses import replace
from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import CardFacts
from formats.plan import ExportPlan, TensorSource, cast, constant, from_entry, widen
from formats.serve import drafted_tokens
from models.checkpoints import SPECULOOS_KEYS
from models.identity import EXTRA_TOKENIZER_FILES, SIZES, TEMPLATES, TOKENIZER_FILES, first_set
from models.methods.trees import nodes
from models.untrusted import without_unsafe_keys

SHAPES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("rms_norm_eps", "rope_theta", "vocab_size"),
)
MAPS = ("d2t", "t2d")
IDS = "eagle_aux_hidden_state_layer_ids"
MASK_TOKEN = "mask_token_id"
HEADS = "medusa_lm_head"
TOKENIZER = (*TOKENIZER_FILES, *TEMPLATES, *EXTRA_TOKENIZER_FILES, "tokenizer_config.json")


def eagle_vllm(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """vLLM derives the class from method and architecture: LlamaForCausalLM becomes EagleLlamaForCausalLM. Its `fc` has
    no bias. The tensors have the reference's names; embeddings and lm_head are the target's."""
    tensors = [from_entry(entry) for entry in checkpoint.tensors.values()]
    return ExportPlan(tensors, layer_config(checkpoint, "LlamaForCausalLM"))


def eagle_sglang(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """SGLang's `fc` has a bias, uninitialized if it is not in the file: a draft without a bias gets a bias of zeros."""
    plan = eagle_vllm(checkpoint, base, facts)
    dtype, size = checkpoint.written_type, checkpoint.hidden_size
    zeros = [] if "fc.bias" in checkpoint.tensors else [constant("fc.bias", dtype, (size,), bytes(SIZES[dtype] * size))]
    return ExportPlan([*plan.tensors, *zeros], layer_config(checkpoint, "LlamaForCausalLMEagle"))


def eagle3_vllm(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """Layer ids count inputs (output + 1); all versions read them at the top level, newer ones also in eagle_config.
    Only vLLM knows this class name: SGLang, which counts outputs, refuses it instead of fusing other layers."""
    ids = _layer_ids(checkpoint, 1)
    config = _eagle3_config(checkpoint, "Eagle3LlamaForCausalLM", ids)
    return ExportPlan(_eagle3_tensors(checkpoint, *MAPS), {**config, **_norms(checkpoint), **ids})


def eagle3_speculators(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """The layer has a nested transformers config. Layer ids count inputs (output + 1) and are always written: without
    them `from_pretrained` would open the base model's config."""
    config = {
        **speculators_header(checkpoint, facts, "eagle3", drafted_tokens(checkpoint)),
        "architectures": ["Eagle3DraftModel"],
        "transformer_layer_config": layer_config(checkpoint, "LlamaForCausalLM"),
        "draft_vocab_size": checkpoint.draft_vocab_size,
        "target_hidden_size": None,
        **_norms(checkpoint),
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "torch_dtype": checkpoint.dtype,
        "dtype": checkpoint.dtype,
        IDS: [layer + 1 for layer in checkpoint.aux_layers],
    }
    return ExportPlan(_eagle3_tensors(checkpoint, *MAPS), config)


def speculators_header(checkpoint: CheckpointFiles, facts: CardFacts, method: str, tokens: int) -> dict[str, Any]:
    """What speculators writes about a draft that proposes `tokens` at once."""
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": tokens,
        "accept_tolerance": 0.0,
        "verifier_accept_k": 1,
    }
    return {
        "speculators_model_type": method,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": method,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": facts.location, "architectures": checkpoint.base.get("architectures") or []},
        },
    }


def peagle_vllm(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """EAGLE-3's class, which reads `mask_hidden` and the mask token if the command sets `parallel_drafting`. It does
    not read `num_depths`, which is for imports."""
    plan = eagle3_vllm(checkpoint, base, facts)
    return replace(plan, config=plan.config | {key: checkpoint.config[key] for key in (MASK_TOKEN, "num_depths")})


def peagle_speculators(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """EAGLE-3's config with the mask token, and the depths for imports: `speculative_tokens` may be fewer. speculators
    trains P-EAGLE's embeddings (`embed_requires_grad`)."""
    plan = eagle3_speculators(checkpoint, base, facts)
    changes = {
        "architectures": ["PEagleDraftModel"],
        "speculators_model_type": "peagle",
        "speculators_config": {**plan.config["speculators_config"], "algorithm": "peagle"},
        "embed_requires_grad": True,
        **{name: checkpoint.config[name] for name in (MASK_TOKEN, "num_depths")},
    }
    return replace(plan, config=plan.config | changes)


def eagle3_sglang(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """Layer ids count outputs; SGLang adds one itself. It does not read `norm_before_residual`."""
    config = _eagle3_config(checkpoint, "LlamaForCausalLMEagle3", _layer_ids(checkpoint, 0)) | _norms(checkpoint)
    del config["norm_before_residual"]
    return ExportPlan(_eagle3_tensors(checkpoint, *MAPS), config)


def eagle3_trtllm(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """The server reads layers from its YAML; other programs read the same ids of outputs. It has no t2d. Unlike other
    servers it reads `norm_before_fc` in eagle_config only."""
    config = _eagle3_config(checkpoint, "EAGLE3LlamaForCausalLM", _layer_ids(checkpoint, 0)) | _norms(checkpoint)
    config["eagle_config"]["norm_before_fc"] = config.pop("norm_before_fc")
    del config["norm_before_residual"]
    return ExportPlan(_eagle3_tensors(checkpoint, "d2t"), config)


def eagle3_modelopt(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """ModelOpt's template: layer ids count outputs, no t2d, and the options of its module."""
    config = _eagle3_config(checkpoint, "LlamaForCausalLMEagle3", _layer_ids(checkpoint, 0))
    config["eagle_config"] |= {
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    }
    config |= {"initializer_range": 0.02, "attention_dropout": 0.0, "pretraining_tp": 1}
    return ExportPlan(_eagle3_tensors(checkpoint, "d2t"), config)


def medusa_vllm(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """`blocks.{h}.layers.{l}`. A shared matrix is written once (`original_lm_head`). No other key may
    contain `num` with `heads` or `layers`: vLLM's config class reads any such key as the number of heads or layers."""
    shape, shared = checkpoint.config, bool(checkpoint.config.get("medusa_tie_lm_head"))
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": checkpoint.hidden_size,
        "vocab_size": checkpoint.vocab_size,
        "truncated_vocab_size": checkpoint.vocab_size,
        "num_heads": shape["medusa_num_heads"],
        "num_hidden_layers": shape["medusa_num_layers"],
        "medusa_fc_bias": True,
        "original_lm_head": shared,
        "tie_word_embeddings": False,
        "torch_dtype": checkpoint.dtype,
        "dtype": checkpoint.dtype,
    }
    blocks = _blocks(checkpoint, "blocks.{head}.layers.{layer}.{kind}")
    count = 1 if shared else shape["medusa_num_heads"]
    heads = [_matrix(checkpoint, base, h, f"lm_heads.{h}.weight") for h in range(count)]
    return ExportPlan([*blocks, *heads], config)


def medusa_trtllm(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """The repository's layout with both keys for the number of heads: config.py and model.py of TensorRT-LLM read
    different ones. Older releases read only the `.pt` file. The tree is the tuned one, every node as a path of ranks;
    for an untuned draft, a chain of the best tokens."""
    plan, heads = medusa_medusa(checkpoint, base, facts), checkpoint.config["medusa_num_heads"]
    extra = {
        "num_medusa_heads": heads,
        "hidden_size": checkpoint.hidden_size,
        "vocab_size": checkpoint.vocab_size,
    }
    tree = checkpoint.tree or [[0] * heads]
    choices = sorted(nodes(tree), key=lambda path: (len(path), path))
    return replace(plan, config=plan.config | extra, texts={"medusa_choices.json": json.dumps(choices) + "\n"})


def medusa_medusa(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """`{h}.{l}.linear` and `{h}.{L}`. No `model_type`: the repository would read the config as the base model's. No
    `architectures`: TGI would not recognize the folder as Medusa heads."""
    count, last = checkpoint.config["medusa_num_heads"], checkpoint.config["medusa_num_layers"]
    config = {
        "base_model_name_or_path": facts.location,
        "medusa_num_heads": count,
        "medusa_num_layers": last,
        "torch_dtype": checkpoint.dtype,
    }
    blocks = _blocks(checkpoint, "{head}.{layer}.linear.{kind}")
    heads = [_matrix(checkpoint, base, h, f"{h}.{last}.weight") for h in range(count)]
    return ExportPlan([*blocks, *heads], config, weights=f"{HEADS}.safetensors", pickled=f"{HEADS}.pt")


def draft_huggingface(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """A standalone draft as a Hugging Face folder with the base model's tokenizer. Its generation config has no
    sampling settings: the caller chooses them for an assistant model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    values = {key: value for key, value in checkpoint.config.items() if key not in (*SPECULOOS_KEYS, "torch_dtype")}
    architectures = values.get("architectures") or [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[values["model_type"]]]
    config = without_unsafe_keys({**values, "dtype": checkpoint.dtype, "architectures": architectures})
    tokenizer = [path for name in TOKENIZER if (path := checkpoint.base_path / name).is_file()]
    tensors = [from_entry(entry) for entry in checkpoint.tensors.values()]
    path = checkpoint.path / "generation_config.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    generation = {key: stored[key] for key in names if stored.get(key) is not None}
    text = json.dumps(generation or {"eos_token_id": checkpoint.base.get("eos_token_id")}, indent=2) + "\n"
    return ExportPlan(tensors, config, copies=tuple(tokenizer), texts={"generation_config.json": text})


def layer_config(checkpoint: CheckpointFiles, architecture: str) -> dict[str, Any]:
    """config.json of a draft with layers like Llama's. Rotary settings are the draft's own: drafts trained in the
    workbench have no rope scaling even if the base model has. Both keys of the type are written, since servers read one
    or the other."""
    bos = checkpoint.base.get("bos_token_id")
    return {
        "architectures": [architecture],
        "model_type": "llama",
        **{name: checkpoint.config[name] for name in SHAPES},
        "num_hidden_layers": checkpoint.config.get("eagle_num_layers", 1),
        "max_position_embeddings": int(first_set(checkpoint.base, "max_position_embeddings", "n_positions") or 2048),
        "hidden_act": "silu",
        "rope_scaling": checkpoint.config.get("rope_scaling"),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": bos[0] if isinstance(bos, list) and bos else bos,
        "eos_token_id": checkpoint.base.get("eos_token_id"),
        "use_cache": True,
        "torch_dtype": checkpoint.dtype,
        "dtype": checkpoint.dtype,
    }


def _eagle3_config(checkpoint: CheckpointFiles, architecture: str, ids: dict[str, Any]) -> dict[str, Any]:
    return {
        **layer_config(checkpoint, architecture),
        "draft_vocab_size": checkpoint.draft_vocab_size,
        "target_hidden_size": checkpoint.config.get("target_hidden_size") or checkpoint.hidden_size,
        "eagle_config": {"use_aux_hidden_state": True, **ids},
    }


def _eagle3_tensors(checkpoint: CheckpointFiles, *maps: str) -> list[TensorSource]:
    """All tensors except vocabulary maps that are not in `maps`; no map for a whole vocabulary."""
    left_out = {name for name in MAPS if name not in maps or not checkpoint.small_vocabulary}
    return [from_entry(entry) for name, entry in checkpoint.tensors.items() if name not in left_out]


def _norms(checkpoint: CheckpointFiles) -> dict[str, bool]:
    """Options of EAGLE-3.1. vLLM and speculators read all of them, SGLang and TensorRT-LLM all but the first."""
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    return {name: bool(checkpoint.config.get(name)) for name in names}


def _layer_ids(checkpoint: CheckpointFiles, added: int) -> dict[str, list[int]]:
    """Ids of layer outputs plus `added`. No key for the default of all servers, so that no server can misread them."""
    if checkpoint.aux_layers == checkpoint.default_aux_layers:
        return {}
    return {IDS: [layer + added for layer in checkpoint.aux_layers]}


def _blocks(checkpoint: CheckpointFiles, pattern: str) -> list[TensorSource]:
    sources = []
    for name, entry in checkpoint.tensors.items():
        if name.startswith("blocks."):
            _, head, layer, _, kind = name.split(".")
            source = from_entry(entry, pattern.format(head=head, layer=layer, kind=kind))
            sources.append(widen(source, checkpoint.written_type))
    return sources


def _matrix(checkpoint: CheckpointFiles, base: Any, head: int, name: str) -> TensorSource:
    """A head's own matrix, or the base model's: no server uses the target's."""
    if checkpoint.config.get("medusa_tie_lm_head"):
        shape = (checkpoint.vocab_size, checkpoint.hidden_size)
        return cast(name, shape, checkpoint.written_type, lambda: base.lm_head.weight)
    return from_entry(checkpoint.tensors[f"lm_heads.{head}.weight"], name)
