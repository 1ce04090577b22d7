"""A standalone draft: a small language model with the base's vocabulary.

Made from the base by dropping layers and optionally pruning its width (Yan et al. 2024, *Decoding Speculative
Decoding*: wide and shallow drafts are better than deep ones), with random weights, or from another small model. Its
checkpoint folder is also a Hugging Face folder: `config.json` is the model's with Speculoos' keys added."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from models.base import LoadedBase, find_layers, load_base
from models.checkpoints import SPECULOOS_KEYS
from models.dequantize import dense_weight, is_plain
from models.head_only import HeadOnlyBase, shallow_config
from models.methods.standalone import StandaloneSizes
from models.untrusted import without_unsafe_keys
from speculoos.errors import BadInput, Unsupported

READING_MATRICES = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
"""Matrices [out, hidden], which read the hidden states."""
WRITING_MATRICES = ("o_proj", "down_proj")
"""Matrices [hidden, in], which write the hidden states."""
ROWS = {"q_proj": "query", "k_proj": "key", "v_proj": "key", "gate_proj": "inner", "up_proj": "inner"}
COLUMNS = {"o_proj": "query", "down_proj": "inner"}
"""What pruning keeps of the rows and the columns of a layer's matrices (`_kept_rows`)."""
BY_HEAD = ("q_norm", "k_norm")
"""Norms over the head size, which is not pruned."""


class StandaloneDraft(nn.Module):
    """`model` is a transformers causal LM with the token ids of the base."""

    method: ClassVar[str] = "draft"

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self._no_split_modules = model._no_split_modules
        self._as_base: LoadedBase | None = None

    @classmethod
    def from_base(
        cls, base: LoadedBase, num_layers: int, sizes: StandaloneSizes | None = None, random: bool = False
    ) -> "StandaloneDraft":
        """The base with `num_layers` of its layers, evenly spread with the first and last, and its embeddings and head.
        `sizes` also prunes the width (`prune_width`). `random`: new random weights; nothing is copied."""
        from transformers import AutoModelForCausalLM

        if isinstance(base, HeadOnlyBase) and not random:
            raise Unsupported(
                "hidden_states: a standalone draft is initialized from the base's layers, which another server runs; "
                "set draft_path, set draft_init to random, or leave hidden_states empty."
            )
        layers = evenly_spaced_layers(base.num_layers, num_layers)
        config = shallow_config(base.config, layers)
        narrow = sizes is not None and replace(sizes, layers=base.num_layers) != base_sizes(base)
        if narrow:
            _resize(config.get_text_config(), sizes, base)
        try:
            model = AutoModelForCausalLM.from_config(config, dtype=base.dtype)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unsupported(f"{base.path}: no smaller copy of this model can be made ({error}).") from None
        if not random:
            state = _layer_weights(base.model, layers)
            model.load_state_dict(_pruned(state, model, base, sizes) if narrow else state, strict=False)
        model.generation_config = copy.deepcopy(base.model.generation_config)
        return cls(model.to(base.device))

    @classmethod
    def from_folder(cls, folder: str | Path, base: LoadedBase) -> "StandaloneDraft":
        """A small model with the token ids of the base. Raises Unsupported when the tokenizers differ."""
        small = load_base(folder, dtype=str(base.dtype).removeprefix("torch."), device=str(base.device))
        check_same_tokens(small, base)
        if any(hasattr(module, "in_features") and not is_plain(module) for module in small.model.modules()):
            raise Unsupported(f"{folder}: the weights of this draft are quantized, so it cannot be trained.")
        if small.embed_tokens.weight.shape[0] != base.vocab_size:  # families pad the same tokenizer differently
            small.model.resize_token_embeddings(base.vocab_size, mean_resizing=False)
        return cls(small.model.requires_grad_(True))

    @classmethod
    def from_json(cls, data: dict[str, Any], base: LoadedBase) -> "StandaloneDraft":
        from transformers import AutoConfig, AutoModelForCausalLM

        values = without_unsafe_keys({key: value for key, value in data.items() if key not in SPECULOOS_KEYS})
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        return cls(AutoModelForCausalLM.from_config(config, dtype=base.dtype).to(base.device))

    def to_json(self) -> dict[str, Any]:
        return self.model.config.to_dict()

    def tensors(self) -> dict[str, Tensor]:
        """The model's tensors, named as in transformers, without a tied LM head."""
        state = self.model.state_dict()
        if self.model.config.get_text_config().tie_word_embeddings:
            state.pop("lm_head.weight", None)
        return state

    def load_state_dict(self, state: dict[str, Tensor], strict: bool = True) -> Any:
        keys = self.model.load_state_dict(state, strict=False)
        self.model.tie_weights()
        return keys

    def extra_files(self) -> dict[str, str]:
        """Files a Hugging Face folder needs besides weights and config."""
        return {"generation_config.json": self.model.generation_config.to_json_string()}

    def as_base(self, base: LoadedBase) -> LoadedBase:
        """This draft as a LoadedBase with the base's tokenizer; always the same object, so that it is packed once."""
        if self._as_base is None:
            self._as_base = replace(base, model=self.model, forward=None, layer_devices=())
        return self._as_base

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


def base_sizes(base: LoadedBase) -> StandaloneSizes:
    text = base.config.get_text_config()
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    return StandaloneSizes(
        base.num_layers, base.hidden_size, getattr(text, "intermediate_size", 0) or 0, heads, kv_heads
    )


def evenly_spaced_layers(total: int, count: int) -> list[int]:
    """Indices of `count` of `total` layers, evenly spread with both ends: spread(30, 4) = [0, 10, 19, 29]."""
    if not 1 <= count <= total:
        raise BadInput(f"draft_num_layers: expected 1 to {total} for this base, got {count}.")
    return [round(i * (total - 1) / max(count - 1, 1)) for i in range(count)]


def check_same_tokens(small: LoadedBase, base: LoadedBase) -> None:
    """Raise Unsupported unless both tokenizers have the same vocabulary, token for token."""
    ours, theirs = small.tokenizer.get_vocab(), base.tokenizer.get_vocab()
    if ours != theirs:
        differing = next(iter(sorted(set(ours.items()) ^ set(theirs.items()))))[0]
        raise Unsupported(
            f"{small.path} has another tokenizer than the base (they differ in {differing!r}); "
            "a standalone draft must share the base's vocabulary."
        )


def _layer_weights(model: Any, sources: list[int]) -> dict[str, Tensor]:
    """The state dict with only the layers `sources`, renumbered 0, 1, …"""
    layers = find_layers(model)
    prefix = next(name for name, module in model.named_modules() if module is layers) + "."
    number = {old: new for new, old in enumerate(sources)}
    state = {}
    for name, value in _dense_state(model).items():
        if name.startswith(prefix):
            old, rest = name[len(prefix) :].split(".", 1)
            if int(old) not in number:
                continue
            name = f"{prefix}{number[int(old)]}.{rest}"
        state[name] = value.clone()
    return state


def _dense_state(model: Any) -> dict[str, Tensor]:
    """The state dict, with de-quantized weights."""
    state = model.state_dict()
    quantized = ((name, m) for name, m in model.named_modules() if hasattr(m, "in_features") and not is_plain(m))
    for name, linear in quantized:
        own = [key for key in state if key.startswith(f"{name}.") and key != f"{name}.bias"]
        for key in own:
            del state[key]
        state[f"{name}.weight"] = dense_weight(linear, model.get_input_embeddings().weight)
    return state


def _head_size(base: LoadedBase) -> int:
    text = base.config.get_text_config()
    return getattr(text, "head_dim", None) or base.hidden_size // text.num_attention_heads


def _resize(text: Any, sizes: StandaloneSizes, base: LoadedBase) -> None:
    """Set the sizes; the head size stays the base's. Raises Unsupported for a size that the family lacks."""
    own, size = base_sizes(base), _head_size(base)
    fields = {
        "hidden_size": (sizes.hidden_size, own.hidden_size),
        "intermediate_size": (sizes.intermediate_size, own.intermediate_size),
        "num_attention_heads": (sizes.heads, own.heads),
        "num_key_value_heads": (sizes.kv_heads, own.kv_heads),
    }
    for name, (value, base_value) in fields.items():
        if hasattr(text, name):
            setattr(text, name, value)
        elif value not in (base_value, sizes.heads):  # a family without GQA has as many key-value heads as heads
            raise Unsupported(f"{base.path}: {name} cannot be set for models of the family {text.model_type}.")
    if getattr(text, "head_dim", None) or sizes.heads * size != sizes.hidden_size:
        text.head_dim = size


def _pruned(state: dict[str, Tensor], model: Any, base: LoadedBase, sizes: StandaloneSizes) -> dict[str, Tensor]:
    """The base's weights pruned to the sizes of `model`. Raises Unsupported when layers are not Llama-like."""
    try:
        weights = prune_width(state, base_sizes(base), sizes, _head_size(base))
        fits = all(value.shape == weights[name].shape for name, value in model.state_dict().items())
    except (KeyError, IndexError, RuntimeError):
        fits = False
    if not fits:
        raise Unsupported(
            f"{base.path}: models of the family {base.config.model_type} cannot be pruned by width.",
            "Set draft_init to random, or use the base's width.",
        )
    return weights


def prune_width(
    state: Mapping[str, Tensor], wide: StandaloneSizes, narrow: StandaloneSizes, head_size: int
) -> dict[str, Tensor]:
    """Prune tensors of a model from sizes `wide` to `narrow`, keeping what has the largest weight norms: channels for
    the whole model, key-value heads (with their query heads) and neurons for each layer. Raises KeyError if its layers
    are not Llama's."""
    hidden = _largest(_channels(state, wide.hidden_size), narrow.hidden_size)
    query = ".self_attn.q_proj.weight"
    layers = [name.removesuffix(query) for name in state if name.endswith(query)]
    kept_rows = {layer: _kept_rows(state, layer, wide, narrow, head_size) for layer in layers}
    return {name: _cut(name, value, hidden, kept_rows, wide.hidden_size) for name, value in state.items()}


def _channels(state: Mapping[str, Tensor], hidden: int) -> Tensor:
    """[hidden]: each channel's share of the squared norm, summed over all matrices that read or write it."""
    total = torch.zeros(hidden)
    for name, value in state.items():
        owner = name.split(".")[-2]
        if name.endswith(".weight") and owner in READING_MATRICES + WRITING_MATRICES:
            squares = value.detach().float().cpu().pow(2).sum(0 if owner in READING_MATRICES else 1)
            total += squares / squares.sum().clamp(min=1e-30)
    return total


def _kept_rows(
    state: Mapping[str, Tensor], layer: str, wide: StandaloneSizes, narrow: StandaloneSizes, head_size: int
) -> dict[str, Tensor]:
    """Rows (of WRITING_MATRICES: columns) that one layer keeps: `query`, `key` and `inner`."""

    def norms(name: str, dim: int) -> Tensor:
        return state[f"{layer}.{name}.weight"].detach().float().cpu().norm(dim=dim)

    inner = norms("mlp.gate_proj", 1) * norms("mlp.up_proj", 1) * norms("mlp.down_proj", 0)
    out = norms("self_attn.o_proj", 0).view(wide.kv_heads, -1, head_size).pow(2).sum(-1)  # [kv heads, heads of each]
    keys = _largest(out.sum(1), narrow.kv_heads)
    group = out.shape[1]
    queries = torch.cat([key * group + _largest(out[key], narrow.heads // narrow.kv_heads) for key in keys])
    size = torch.arange(head_size)
    return {
        "query": (queries[:, None] * head_size + size).flatten(),
        "key": (keys[:, None] * head_size + size).flatten(),
        "inner": _largest(inner, narrow.intermediate_size),
    }


def _cut(name: str, value: Tensor, hidden: Tensor, kept_rows: Mapping[str, dict[str, Tensor]], width: int) -> Tensor:
    *path, _module, owner, _kind = ("", *name.split("."))
    layer = kept_rows.get(".".join(path).strip("."), {})
    by_channel = value.dim() == 1 and len(value) == width and owner not in (*BY_HEAD, *READING_MATRICES)
    rows = hidden if by_channel or owner in WRITING_MATRICES else layer.get(ROWS.get(owner))
    columns = hidden if owner in READING_MATRICES else layer.get(COLUMNS.get(owner))
    if rows is not None:
        value = value[rows.to(value.device)]
    if columns is None or value.dim() == 1:
        return value
    return value[:, columns.to(value.device)].contiguous()


def _largest(scores: Tensor, count: int) -> Tensor:
    return scores.topk(count).indices.sort().values
