"""Options of the pages: sampling, draft tree, acceptance rule (exact or Medusa's typical one), probabilities."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy.orm import Session

from models.methods import METHODS, trees
from speculoos.errors import BadInput, NotFound
from tracking import queries

LOOKUP = "ngram"  # the drafter without a checkpoint: prompt lookup
LOOKUP_OPTIONS = ("depth", "width", "max_ngram", "min_ngram")
EXACT, TYPICAL = "exact", "typical"
NON_TREE_OPTIONS = ("drafter", "acceptance", "probabilities")  # the other speculation options are the tree's


@dataclass(frozen=True)
class Drafting:
    """`tree` in the syntax of `models.methods.trees` ("" is the checkpoint's own), an acceptance rule, and whether the
    trace contains the base model's probability of every drafted token."""

    tree: str = ""
    acceptance: str = EXACT
    probabilities: bool = False

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> "Drafting":
        """From the request of a stored run."""
        given = request.get("speculation") or {}
        tree = given.get("tree")
        options = {name: value for name, value in given.items() if name not in NON_TREE_OPTIONS}
        text = tree if isinstance(tree, str) else trees.editable_text(options) if options else ""
        return cls(text, str(given.get("acceptance") or EXACT), bool(given.get("probabilities")))

    def speculation(self, drafter: str = "") -> dict[str, Any]:
        """The `speculation` field of a request to the inference server; {} for the defaults."""
        given = {
            "drafter": drafter,
            "tree": self.tree.strip() if self.tree.strip() != trees.CHECKPOINT_OPTIONS else "",
            "acceptance": TYPICAL if self.acceptance == TYPICAL else "",
            "probabilities": self.probabilities,
        }
        return {name: value for name, value in given.items() if value}


@dataclass(frozen=True)
class TurnSampling:
    """Sampling options. Temperature 0 is greedy; with `seed` None every run draws a new seed."""

    max_tokens: int = 256
    temperature: float = 0.0
    seed: int | None = None
    system: str = ""
    top_p: float = 1.0
    top_k: int = 0

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> "TurnSampling":
        """From the request of a stored run."""
        first = next(iter(request["messages"]), {})
        known = {field.name: request[field.name] for field in fields(cls) if field.name in request}
        return cls(**known, system=first["content"] if first.get("role") == "system" else "")

    def parameters(self) -> dict[str, Any]:
        """Options with OpenAI's names and `top_k`, without the system prompt and without default values."""
        optional = [name for name in ("seed", "top_p", "top_k") if getattr(self, name) != getattr(type(self), name)]
        return {name: getattr(self, name) for name in ("max_tokens", "temperature", *optional)}


def check(session: Session, drafting: Drafting, model: str, drafter: str, temperature: float) -> None:
    """Raises BadInput for options that this model's draft does not support."""
    if drafting.acceptance == TYPICAL and not temperature:
        raise BadInput("Acceptance: typical needs a temperature above 0 (see Settings); at 0 it is the same as exact.")
    tree = trees.parse(drafting.tree)
    name, method, takes = _draft(session, model, drafter)
    rest = set(tree) - {"drafter"}
    if tree.get("drafter", method) == method and rest <= set(takes):
        return
    invalid = ", ".join(sorted(rest - set(takes)) or [str(tree.get("drafter"))])[:80]
    raise BadInput(f"Tree: {name} takes {' and '.join(takes)}, not {invalid}; enter another tree, or own.")


def _draft(session: Session, model: str, drafter: str) -> tuple[str, str, tuple[str, ...]]:
    """(name of the draft, name of its drafter, supported options)."""
    if drafter == LOOKUP:
        return "prompt lookup", LOOKUP, LOOKUP_OPTIONS
    _, checkpoint = queries.find_model(session, model)
    if checkpoint is None or checkpoint.method not in METHODS:
        raise NotFound(f"There is no draft {model!r}; choose another.")
    return checkpoint.name, checkpoint.method, METHODS[checkpoint.method].drafting
