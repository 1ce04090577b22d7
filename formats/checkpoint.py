"""A trained draft and its base model as described by their files: config.json and safetensors headers, no weights. Used
by format records, writers, tables and model cards. No torch."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from models.archive import WEIGHTS, archive_files
from models.checkpoints import SPECULOOS_KEYS, read_config
from models.identity import FLOATS, TensorEntry, tensors, tensors_of, tokenizer_sha256
from models.memory import layer_count
from models.methods import trees
from models.untrusted import read_safe_config
from speculoos.errors import BadInput

METADATA_KEYS = frozenset({*SPECULOOS_KEYS, "dtype", "imported", "source", "notes"})
"""Keys of a checkpoint's config.json that do not describe its network."""


@dataclass(frozen=True)
class CheckpointFiles:
    """`config` is the draft's config.json, `tensors` its stored tensors by name, `base` the text section of the base
    model's config.json, `base_path` the base model's folder, `base_tensors` its stored tensors."""

    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]
    base: Mapping[str, Any]
    base_path: Path
    base_tensors: Mapping[str, TensorEntry] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path, base_path: str | Path) -> "CheckpointFiles":
        """Raises NotFound, BadInput or Unsupported if a folder does not contain a checkpoint or a base model."""
        path, base_path = Path(path), Path(base_path)
        config = read_config(path)
        archive_files(path)  # raises NotFound if the weights are missing
        entries = {entry.name: entry for entry in tensors_of(path / WEIGHTS)}
        base = read_safe_config(base_path)
        return cls(
            path, config, entries, base.get("text_config") or base, base_path, {e.name: e for e in tensors(base_path)}
        )

    @property
    def method(self) -> str:
        return self.config["speculoos_method"]

    @property
    def hidden_size(self) -> int:
        return self.config["hidden_size"]

    @property
    def vocab_size(self) -> int:
        """Number of rows of the base model's lm_head."""
        return self.config["vocab_size"]

    @property
    def draft_vocab_size(self) -> int:
        """Number of columns of the draft's logits."""
        return self.config.get("draft_vocab_size") or self.vocab_size

    @property
    def small_vocabulary(self) -> bool:
        """Whether the draft has a smaller vocabulary than the base model."""
        return self.draft_vocab_size != self.vocab_size

    @property
    def base_layers(self) -> int:
        """Number of decoder layers of the base model."""
        return layer_count(self.base)

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """EAGLE-3: 0-based layers of the base model whose *outputs* are fused, in this order."""
        return tuple(self.config.get("aux_layers") or self.default_aux_layers)

    @property
    def default_aux_layers(self) -> tuple[int, int, int]:
        """The default of every server: outputs of these layers, which are the inputs of layers 2, n // 2 and n - 3."""
        n = self.base_layers
        return (1, n // 2 - 1, n - 4)

    @property
    def tree(self) -> list[list[int]]:
        """Paths of the tuned static tree; [] if there is none, or none that can be drafted, as in a third party's
        checkpoint."""
        tree = self.config.get("drafting", {}).get("tree") or []
        try:
            trees.check(tree)
        except BadInput:
            return []
        return tree

    @cached_property
    def float_type(self) -> str:
        """The safetensors name of the weights' only floating-point type. Raises BadInput if there are several."""
        types = {entry.dtype for entry in self.tensors.values() if entry.dtype in FLOATS}
        if len(types) != 1:
            raise BadInput(
                f"{self.path / WEIGHTS}: expected weights of one floating-point type, found {sorted(types)}."
            )
        return types.pop()

    @cached_property
    def written_type(self) -> str:
        """The type of an export's weights: `float_type`, or the type of the base model's lm_head if heads share it and
        its type is wider, so that no weight is rounded."""
        shared = self.config.get("medusa_tie_lm_head") and not self.small_vocabulary
        shape = (self.vocab_size, self.hidden_size) if shared else ()
        types = [entry.dtype for entry in self.base_tensors.values() if entry.shape == shape and entry.dtype in FLOATS]
        return max([self.float_type, *types], key=[*reversed(FLOATS)].index)

    @property
    def dtype(self) -> str:
        """`written_type` as torch names it, such as `bfloat16`."""
        return FLOATS[self.written_type]

    @cached_property
    def base_dtype(self) -> str:
        """The precision of most tensors of the base model; a server runs both models in it."""
        counts = Counter(entry.dtype for entry in self.base_tensors.values() if entry.dtype in FLOATS)
        return FLOATS[counts.most_common(1)[0][0]] if counts else self.dtype

    @cached_property
    def tokenizer_sha256(self) -> str:
        """The sha256 of the base model's tokenizer."""
        return tokenizer_sha256(self.base_path)

    def unknown(self, known: frozenset[str]) -> list[str]:
        """Keys of config.json that describe the network, have a true value and are not in `known`."""
        return sorted(k for k, v in self.config.items() if k not in known and k not in METADATA_KEYS and v)
