"""Options of a response: sampling, draft tree, acceptance rule (exact or Medusa's typical one), probabilities."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from models.methods import METHODS, trees
from models.methods.eagle import DRAFTING
from speculoos.errors import BadInput, NotFound
from tracking import queries

LOOKUP, OWN_LAYERS = trees.NGRAM, trees.MTP
"""Drafters without a checkpoint: prompt lookup, and the model's own multi-token prediction layer."""
EXACT, TYPICAL = "exact", "typical"
SAMPLING = ("max_tokens", "temperature", "seed", "top_p", "top_k")
NON_TREE_OPTIONS = ("drafter", "acceptance", "probabilities")  # the other speculation options are the tree's


@dataclass(frozen=True)
class TurnOptions:
    """Sampling: temperature 0 is greedy; with `seed` None every run draws a new seed. Drafting: `tree` in the syntax of
    `models.methods.trees` ("" is the checkpoint's own), an acceptance rule, and whether the trace contains the base
    model's probability of every drafted token."""

    max_tokens: int = 256
    temperature: float = 0.0
    seed: int | None = None
    system: str = ""
    top_p: float = 1.0
    top_k: int = 0
    tree: str = ""
    acceptance: str = EXACT
    probabilities: bool = False

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> "TurnOptions":
        """From the request of a stored run."""
        speculation, first = request.get("speculation") or {}, next(iter(request["messages"]), {})
        sampling = {name: request[name] for name in SAMPLING if name in request}
        tree = speculation.get("tree")
        options = {name: value for name, value in speculation.items() if name not in NON_TREE_OPTIONS}
        return cls(
            **sampling,
            system=first["content"] if first.get("role") == "system" else "",
            tree=tree if isinstance(tree, str) else trees.editable_text(options) if options else "",
            acceptance=str(speculation.get("acceptance") or EXACT),
            probabilities=bool(speculation.get("probabilities")),
        )

    def parameters(self) -> dict[str, Any]:
        """Sampling options with OpenAI's names and `top_k`, without the system prompt and without default values."""
        optional = [name for name in SAMPLING[2:] if getattr(self, name) != getattr(type(self), name)]
        return {name: getattr(self, name) for name in (*SAMPLING[:2], *optional)}

    def speculation(self, drafter: str = "") -> dict[str, Any]:
        """The `speculation` field of a request to the inference server; {} for the defaults."""
        fields = {
            "drafter": drafter,
            "tree": self.tree.strip() if self.tree.strip() != trees.CHECKPOINT_OPTIONS else "",
            "acceptance": TYPICAL if self.acceptance == TYPICAL else "",
            "probabilities": self.probabilities,
        }
        return {name: value for name, value in fields.items() if value}


def check(session: Session, options: TurnOptions, model: str, drafter: str) -> None:
    """Raises BadInput for options that this model's draft does not support."""
    if options.acceptance == TYPICAL and not options.temperature:
        raise BadInput("Acceptance: typical needs a temperature above 0 (see Settings); at 0 it is the same as exact.")
    tree = trees.parse(options.tree)
    if drafter == LOOKUP:
        name, method, takes = "prompt lookup", LOOKUP, ("depth", "width", "max_ngram", "min_ngram")
    elif drafter == OWN_LAYERS:
        name, method, takes = OWN_LAYERS, OWN_LAYERS, DRAFTING
    else:
        _, checkpoint = queries.find_model(session, model)
        if checkpoint is None or checkpoint.method not in METHODS:
            raise NotFound(f"There is no draft {model!r}; choose another.")
        name, method, takes = checkpoint.name, checkpoint.method, METHODS[checkpoint.method].drafting
    rest = set(tree) - {"drafter"}
    if tree.get("drafter", method) == method and rest <= set(takes):
        return
    invalid = ", ".join(sorted(rest - set(takes)) or [str(tree.get("drafter"))])[:80]
    raise BadInput(f"Tree: {name} takes {' and '.join(takes)}, not {invalid}; enter another tree, or own.")
