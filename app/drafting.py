"""How a page asks for drafts to be made and accepted: a tree in words, Medusa's typical acceptance, probabilities."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from models.methods import METHODS, trees
from speculoos.errors import BadInput, NotFound
from tracking import queries

LOOKUP = "ngram"
"""The drafter that needs no checkpoint: it copies from the text so far."""
LOOKUP_TAKES = ("depth", "width", "max_ngram", "min_ngram")
EXACT, TYPICAL = "exact", "typical"
BESIDE = ("drafter", "acceptance", "probabilities")
"""What a run's request says beside the options of its tree."""


@dataclass(frozen=True)
class Drafting:
    """`tree` as `models.methods.trees` reads it ("" is the checkpoint's own), an acceptance rule, and whether the trace
    says what the base gave every drafted token."""

    tree: str = ""
    acceptance: str = EXACT
    probabilities: bool = False

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> "Drafting":
        """Of a stored run's request."""
        said = request.get("speculation") or {}
        tree = said.get("tree")
        options = {name: value for name, value in said.items() if name not in BESIDE}
        text = tree if isinstance(tree, str) else trees.typed(options) if options else ""
        return cls(text, str(said.get("acceptance") or EXACT), bool(said.get("probabilities")))

    def speculation(self, drafter: str = "") -> dict[str, Any]:
        """As the inference server takes it; {} where nothing differs from the usual."""
        asked = {
            "drafter": drafter,
            "tree": self.tree.strip() if self.tree.strip() != trees.OWN else "",
            "acceptance": TYPICAL if self.acceptance == TYPICAL else "",
            "probabilities": self.probabilities,
        }
        return {name: value for name, value in asked.items() if value}


def check(session: Session, drafting: Drafting, model: str, drafter: str, temperature: float) -> None:
    """Raises BadInput, in one sentence, for what this model's draft cannot be asked for."""
    if drafting.acceptance == TYPICAL and not temperature:
        raise BadInput(
            "Acceptance: typical needs a temperature above 0 (under Sampling); at 0 it would be the same as exact."
        )
    meant = trees.parse(drafting.tree)
    name, method, takes = _draft(session, model, drafter)
    rest = set(meant) - {"drafter"}
    if meant.get("drafter", method) == method and rest <= set(takes):
        return
    said = ", ".join(sorted(rest - set(takes)) or [str(meant.get("drafter"))])[:80]
    raise BadInput(f"Tree: {name} takes {' and '.join(takes)}, not {said}; write another tree, or own.")


def _draft(session: Session, model: str, drafter: str) -> tuple[str, str, tuple[str, ...]]:
    """(what people call it, its drafter's name, the options that takes)."""
    if drafter == LOOKUP:
        return "prompt lookup", LOOKUP, LOOKUP_TAKES
    _, checkpoint = queries.find_model(session, model)
    if checkpoint is None or checkpoint.method not in METHODS:
        raise NotFound(f"There is no draft {model!r}; choose another.")
    return checkpoint.name, checkpoint.method, METHODS[checkpoint.method].drafting
