"""The base model of an imported draft, without its weights: sizes from a model on the meta device, single tensors from
its files."""

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from models import foreign, identity
from models.base import LoadedBase, aux_layers
from models.identity import TensorEntry
from speculoos.errors import Unsupported

META = torch.device("meta")


class BaseOutline:
    """Sizes and single tensors of the base model in `folder`; `name` is used in messages."""

    def __init__(self, folder: str | Path, name: str):
        self.folder, self.name = Path(folder), name
        self.base = LoadedBase(_meta_model(self.folder), None, self.folder, torch.float32, META, frozenset())
        self.hidden_size, self.vocab_size = self.base.hidden_size, self.base.vocab_size
        self.num_layers = self.base.num_layers

    @property
    def default_layers(self) -> tuple[int, ...]:
        """Layers whose outputs EAGLE-3 fuses by default."""
        return aux_layers(self.num_layers)

    @cached_property
    def entries(self) -> dict[str, TensorEntry]:
        """Headers of its tensors by name."""
        return {entry.name: entry for entry in identity.tensors(self.folder)}

    @cached_property
    def embeddings(self) -> Tensor | None:
        """[V, H]; None if no tensor in its files has their name."""
        return self._weight(self.base.embed_tokens)

    @cached_property
    def head(self) -> Tensor | None:
        """[V, H]: its lm_head, or the embeddings if they are tied."""
        head = self._weight(self.base.lm_head)
        tied = self.base.config.get_text_config().tie_word_embeddings
        return self.embeddings if head is None and tied else head

    def _weight(self, module: Any) -> Tensor | None:
        parameters = self.base.model.named_parameters(remove_duplicate=False)
        names = [name for name, value in parameters if value is module.weight]
        entry = next((self.entries[name] for name in names if name in self.entries), None)
        if entry is None:
            return None
        with safe_open(entry.file, "pt") as stored:
            return stored.get_tensor(entry.name)


def _meta_model(folder: Path) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    with foreign.sanitised_folder(folder, weights=False) as view:
        config = AutoConfig.from_pretrained(view, trust_remote_code=False, local_files_only=True)
    try:
        with META:
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        raise Unsupported(f"{folder}: transformers cannot build this base model ({type(error).__name__}).") from None
    return model
