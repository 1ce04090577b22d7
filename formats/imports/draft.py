"""A draft that was read: our network, tensors by our names, and what there is to say about it."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from formats.imports.base import META, BaseOutline
from formats.imports.source import DraftSource, same_values
from models.checkpoints import draft_class, own_tensors
from speculoos.errors import BadInput, Unsupported

TABLE = "embed_tokens.weight"


@dataclass
class ReadDraft:
    """What a reader makes of a source. `notices` are sentences for people: what was accepted and how it was taken."""

    network: Any
    """Of its method, for its config; where its numbers are in `tensors`, on the meta device."""
    tensors: dict[str, Tensor]
    notices: list[str] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    """Of a checkpoint of ours: what it says of its training."""
    drafting: dict[str, Any] = field(default_factory=dict)


def fill(
    method: str, config: dict[str, Any], source: DraftSource, base: BaseOutline, given: dict[str, Tensor]
) -> ReadDraft:
    """Take every tensor the network of `config` has, out of `given` or from the source under the same name.

    Raises BadInput or Unsupported where one is missing, has another shape, or is left over.
    """
    with META:  # names and shapes, no numbers
        network = draft_class(method).from_json(config, base.base)
    tensors = {}
    for name, parameter in own_tensors(network).items():
        value = given[name] if name in given else source.take(name, tuple(parameter.shape))
        if tuple(value.shape) != tuple(parameter.shape):
            raise BadInput(f"{source.name}: {name} has the shape {list(value.shape)}, not {list(parameter.shape)}.")
        tensors[name] = value
    source.check_nothing_left()
    return ReadDraft(network, tensors)


def check_size(source: DraftSource, base: BaseOutline, key: str, stated: int, actual: int) -> None:
    """Raise Unsupported where the config says another size than the base has."""
    if stated != actual:
        raise Unsupported(
            f"{source.where}: {key} is {stated}, the base {base.name} has {actual}; "
            "choose the base the draft was trained for."
        )


def check_vocabulary(source: DraftSource, base: BaseOutline) -> None:
    """Raise Unsupported where the config's vocabulary is another than the base's."""
    check_size(source, base, "vocab_size", source.fields.number("vocab_size", base.vocab_size), base.vocab_size)


def own_embeddings(source: DraftSource, base: BaseOutline, width: int) -> dict[str, Tensor]:
    """Embeddings [V, width] that the source brings and that are not the base's, by their name; {} where the base's
    serve.

    Raises BadInput where a draft of another width brings none, or they have another shape.
    """
    if not source.has(TABLE):
        if width != base.hidden_size:
            raise BadInput(
                f"{source.name}: {TABLE} is missing, and the base's cannot serve: "
                f"the draft is {width} wide and the base {base.hidden_size}."
            )
        return {}
    own = source.take(TABLE, (base.vocab_size, width))
    shared = width == base.hidden_size and base.embeddings is not None and same_values(own, base.embeddings)
    return {} if shared else {TABLE: own}
