"""A standalone draft: a whole small language model with the base's vocabulary.

Made from the base by dropping layers and, where asked, pruning its width (Yan et al. 2024, *Decoding Speculative
Decoding*: wide and shallow drafts are worth more than deep ones); of its sizes with random weights; or any given small
model. Its checkpoint folder is at the same time a Hugging Face folder: `config.json` is the model's own with Speculoos'
keys added.
"""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from models.base import LoadedBase, find_layers, load_base
from models.checkpoints import OWN_KEYS
from models.foreign import cleaned
from models.frame import HeadOnlyBase, shallow_config
from models.methods.standalone import StandaloneShape
from models.pruning import pruned
from speculoos.errors import BadInput, Unsupported


class StandaloneDraft(nn.Module):
    """`model` is a transformers causal language model. Token id i means the same to it as to the base."""

    method: ClassVar[str] = "draft"

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self._as_base: LoadedBase | None = None

    @classmethod
    def from_base(
        cls, base: LoadedBase, num_layers: int, shape: StandaloneShape | None = None, random: bool = False
    ) -> "StandaloneDraft":
        """The base with `num_layers` of its layers, evenly spread, first and last kept; embeddings and head copied.

        `shape` prunes its width too (`models.pruning`). `random`: nothing is copied, all weights are drawn anew.
        """
        from transformers import AutoModelForCausalLM

        if isinstance(base, HeadOnlyBase) and not random:
            raise Unsupported(
                "hidden_states: a standalone draft starts as some of the base's own layers, which run elsewhere; "
                "give draft_path or set draft_init to random, or leave hidden_states empty."
            )
        layers = spread(base.num_layers, num_layers)
        config = shallow_config(base.config, layers)
        narrow = shape is not None and replace(shape, layers=base.num_layers) != base_shape(base)
        if narrow:
            _resize(config.get_text_config(), shape, base)
        try:
            model = AutoModelForCausalLM.from_config(config, dtype=base.dtype)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unsupported(f"{base.path}: no smaller copy of this model can be made ({error}).") from None
        if not random:
            state = _layer_weights(base.model, layers)
            model.load_state_dict(_pruned(state, model, base, shape) if narrow else state, strict=False)
        model.generation_config = copy.deepcopy(base.model.generation_config)
        return cls(model.to(base.device))

    @classmethod
    def from_folder(cls, folder: str | Path, base: LoadedBase) -> "StandaloneDraft":
        """Any small model whose token ids are the base's. Raises Unsupported where the tokenizers differ."""
        small = load_base(folder, dtype=str(base.dtype).removeprefix("torch."), device=str(base.device))
        check_same_tokens(small, base)
        if small.embed_tokens.weight.shape[0] != base.vocab_size:  # families pad the same tokenizer differently
            small.model.resize_token_embeddings(base.vocab_size, mean_resizing=False)
        return cls(small.model.requires_grad_(True))

    @classmethod
    def from_json(cls, data: dict[str, Any], base: LoadedBase) -> "StandaloneDraft":
        from transformers import AutoConfig, AutoModelForCausalLM

        values = cleaned({key: value for key, value in data.items() if key not in OWN_KEYS})
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        return cls(AutoModelForCausalLM.from_config(config, dtype=base.dtype).to(base.device))

    def to_json(self) -> dict[str, Any]:
        return self.model.config.to_dict()

    def tensors(self) -> dict[str, Tensor]:
        """The model's tensors under transformers' names, a tied head left out."""
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
        """This draft in the shape of a base with the target's tokenizer: what a drafter runs. Always the same one, so
        that its weights are taken over once."""
        if self._as_base is None:
            self._as_base = replace(base, model=self.model, forward=None)
        return self._as_base

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


def base_shape(base: LoadedBase) -> StandaloneShape:
    """The base's own sizes."""
    text = base.config.get_text_config()
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    return StandaloneShape(
        base.num_layers, base.hidden_size, getattr(text, "intermediate_size", 0) or 0, heads, kv_heads
    )


def spread(total: int, count: int) -> list[int]:
    """`count` of `total` layers, evenly spread, ends included: spread(30, 4) = [0, 10, 19, 29]."""
    if not 1 <= count <= total:
        raise BadInput(f"draft_num_layers: expected 1 to {total} for this base, got {count}.")
    return [round(i * (total - 1) / max(count - 1, 1)) for i in range(count)]


def check_same_tokens(small: LoadedBase, base: LoadedBase) -> None:
    """Raise Unsupported unless both tokenizers give every text the same ids (same vocabulary, token for token)."""
    ours, theirs = small.tokenizer.get_vocab(), base.tokenizer.get_vocab()
    if ours != theirs:
        differing = next(iter(sorted(set(ours.items()) ^ set(theirs.items()))))[0]
        raise Unsupported(
            f"{small.path} has another tokenizer than the base (they differ in {differing!r}); "
            "a standalone draft must share the base's vocabulary."
        )


def _layer_weights(model: Any, sources: list[int]) -> dict[str, Tensor]:
    """The state dict with kept layers renumbered 0, 1, … and the others left out."""
    layers = find_layers(model)
    prefix = next(name for name, module in model.named_modules() if module is layers) + "."
    number = {old: new for new, old in enumerate(sources)}
    state = {}
    for name, value in model.state_dict().items():
        if name.startswith(prefix):
            old, rest = name[len(prefix) :].split(".", 1)
            if int(old) not in number:
                continue
            name = f"{prefix}{number[int(old)]}.{rest}"
        state[name] = value.clone()
    return state


def _head_size(base: LoadedBase) -> int:
    text = base.config.get_text_config()
    return getattr(text, "head_dim", None) or base.hidden_size // text.num_attention_heads


def _resize(text: Any, shape: StandaloneShape, base: LoadedBase) -> None:
    """Write the sizes into a config of transformers; heads keep the base's size. Raises Unsupported for a family that
    cannot have one of them."""
    own, size = base_shape(base), _head_size(base)
    sizes = {
        "hidden_size": (shape.hidden_size, own.hidden_size),
        "intermediate_size": (shape.intermediate_size, own.intermediate_size),
        "num_attention_heads": (shape.heads, own.heads),
        "num_key_value_heads": (shape.kv_heads, own.kv_heads),
    }
    for name, (value, before) in sizes.items():
        if hasattr(text, name):
            setattr(text, name, value)
        elif value not in (before, shape.heads):  # a family without groups has as many key-value heads as heads
            raise Unsupported(f"{base.path}: models of the family {text.model_type} have no {name} to choose.")
    if getattr(text, "head_dim", None) or shape.heads * size != shape.hidden_size:
        text.head_dim = size


def _pruned(state: dict[str, Tensor], model: Any, base: LoadedBase, shape: StandaloneShape) -> dict[str, Tensor]:
    """The base's weights cut to the size of `model`. Raises Unsupported for layers of other parts than Llama's."""
    try:
        found = pruned(state, base_shape(base), shape, _head_size(base))
        fits = all(value.shape == found[name].shape for name, value in model.state_dict().items())
    except (KeyError, IndexError, RuntimeError):
        fits = False
    if not fits:
        raise Unsupported(
            f"{base.path}: models of the family {base.config.model_type} cannot be pruned by width.",
            "Set draft_init to random, or leave the base's width.",
        )
    return found
