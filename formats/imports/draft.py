"""The result of reading a source: the workbench's draft network, tensors by its names, and notices for the user."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from formats.imports.base import META, BaseOutline
from formats.imports.source import DraftSource, same_values
from models.checkpoints import draft_class, stored_tensors
from speculoos.errors import BadInput, Unsupported

EMBEDDINGS = "embed_tokens.weight"


@dataclass
class ImportedDraft:
    """A draft that was read from a source. `notices` are sentences for the user about differences that were
    accepted."""

    network: Any
    """The method's network for the config; on the meta device if its weights are in `tensors`."""
    tensors: dict[str, Tensor]
    notices: list[str] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    """Training metadata of a Speculoos checkpoint."""
    drafting: dict[str, Any] = field(default_factory=dict)


def fill(
    method: str, config: dict[str, Any], source: DraftSource, base: BaseOutline, tensors: dict[str, Tensor]
) -> ImportedDraft:
    """The network of `config` with all its tensors, from `tensors` or from the source under the same name.

    Raises BadInput or Unsupported if a tensor is missing, has another shape, or is not used.
    """
    with META:  # names and shapes, no numbers
        network = draft_class(method).from_json(config, base.base)
    filled = {}
    for name, parameter in stored_tensors(network).items():
        value = tensors[name] if name in tensors else source.take(name, tuple(parameter.shape))
        if tuple(value.shape) != tuple(parameter.shape):
            raise BadInput(f"{source.name}: {name} has the shape {list(value.shape)}, not {list(parameter.shape)}.")
        filled[name] = value
    source.check_all_taken()
    return ImportedDraft(network, filled)


def check_size(source: DraftSource, base: BaseOutline, key: str, stated: int, actual: int) -> None:
    """Raise Unsupported if the size in the config is not the base model's."""
    if stated != actual:
        raise Unsupported(
            f"{source.config_name}: {key} is {stated}, the base model {base.name} has {actual}; "
            "choose the base model the draft was trained for."
        )


def check_vocabulary(source: DraftSource, base: BaseOutline) -> None:
    """Raise Unsupported if the config's vocabulary size is not the base model's."""
    check_size(source, base, "vocab_size", source.fields.number("vocab_size", base.vocab_size), base.vocab_size)


def own_embeddings(source: DraftSource, base: BaseOutline, width: int) -> dict[str, Tensor]:
    """The source's own embeddings [V, width] by their name; {} if the draft uses the base model's.

    Raises BadInput if they have another shape, or are missing in a draft of another hidden size.
    """
    if not source.has(EMBEDDINGS):
        if width != base.hidden_size:
            raise BadInput(
                f"{source.name}: {EMBEDDINGS} is missing, and the base model's cannot be used: "
                f"the draft's hidden size is {width}, the base model's {base.hidden_size}."
            )
        return {}
    own = source.take(EMBEDDINGS, (base.vocab_size, width))
    shared = width == base.hidden_size and base.embeddings is not None and same_values(own, base.embeddings)
    return {} if shared else {EMBEDDINGS: own}
