"""Targets of requests: ready base models, their compatible checkpoints, servers, and why speculation is off. Queries
only."""

from typing import NamedTuple

from sqlalchemy.orm import Session

from app.drafting import LOOKUP, OWN_LAYERS
from app.i18n import t
from app.views.checkpoint_rows import REFERENCE, is_reference
from speculoos.settings import Settings
from tracking import queries
from tracking.names import server_of
from tracking.tables import Base, Checkpoint, Run

PLAIN = ""
"""The choice of plain decoding."""
LOOKUP_CHOICE, OWN_CHOICE = f":{LOOKUP}", f":{OWN_LAYERS}"
"""The choices of drafters without a checkpoint; names of checkpoints cannot start with a colon."""


class ModelChoice(NamedTuple):
    """A model as in the API, and the requested drafter ("" is the checkpoint's own)."""

    model: str
    drafter: str = ""


def base_names(session: Session) -> list[str]:
    return [base.name for base in queries.bases(session, ready_only=True)]


def servers(settings: Settings) -> list[tuple[str, str]]:
    """(label, value) of the servers in the settings as they are now; the value is the model of their runs."""
    return [(t("{name} · server", name=name), f"@{name}") for name in settings.current().endpoints]


def fits(checkpoint: Checkpoint, base: Base) -> bool:
    """Whether the checkpoint was trained on exactly these weights."""
    return not checkpoint.base_sha256 or checkpoint.base_sha256 == base.weights_sha256


def fitting(session: Session, base: Base) -> list[Checkpoint]:
    """Ready compatible checkpoints of a base model, best first: by measured speedup, then τ, then newest."""
    ready = [c for c in queries.checkpoints(session, base.id, ready_only=True) if fits(c, base)]
    return sorted(ready, key=lambda c: (-_number(c, "speedup"), -_number(c, "mean_accepted_length")))


def draft_choices(session: Session, base_name: str) -> list[tuple[str, str]]:
    """(label, value) of the drafts for a base model: compatible checkpoints, best first, prompt lookup, none."""
    if server_of(base_name):
        return [(t("The server's own"), PLAIN)]
    base = _base(session, base_name)
    checkpoints = fitting(session, base) if base else []
    labels = [(f"{c.name} · {c.method}{_figure(c)}", c.name) for c in checkpoints]
    if base and drafts_itself(base):
        labels.append((t("Its own multi-token prediction (no training)"), OWN_CHOICE))
    return [*labels, (t("Prompt lookup (n-grams, no training)"), LOOKUP_CHOICE), (t("None: plain decoding"), PLAIN)]


def default_draft(choices: list[tuple[str, str]]) -> str:
    """The one of `draft_choices` for a new chat: the best checkpoint, else the base model's own layers, else plain
    decoding."""
    first = choices[0][1]
    return PLAIN if first == LOOKUP_CHOICE else first


def drafts_itself(base: Base) -> bool:
    """Whether the base model has multi-token prediction layers that can draft here."""
    mtp = (base.card or {}).get("mtp") or {}
    return bool(mtp) and not mtp.get("reason")


def target(base_name: str, draft: str) -> ModelChoice:
    return parse(f"{base_name}@{draft}" if draft not in (PLAIN, LOOKUP_CHOICE, OWN_CHOICE) else base_name + draft)


def why_off(session: Session, base_name: str, draft: str) -> str:
    """Why speculation is off or not chosen here, or which checkpoints are not offered; otherwise ""."""
    if server_of(base_name):
        return t("The server chooses its own draft; tree and acceptance in Settings do not apply to it.")
    base = _base(session, base_name)
    if base is None:
        return t("There is no base model yet. Add one on Models.")
    ready = queries.checkpoints(session, base.id, ready_only=True)
    incompatible = [c.name for c in ready if not fits(c, base)]
    names = ", ".join(incompatible)
    note = " " + t("Incompatible, trained on other weights: {names}.", names=names) if incompatible else ""
    if draft != PLAIN:
        return note.strip()
    if len(ready) > len(incompatible) or drafts_itself(base):
        return t("Speculation is off: no draft is selected, so the base model generates every token.") + note
    return t("Speculation is off: {name} has no draft yet. Train or import one.", name=base_name) + note


def all_targets(session: Session) -> list[tuple[str, str]]:
    """(label, value) of all models on the Compare page; the value is `model`, `model` + LOOKUP_CHOICE or OWN_CHOICE."""
    choices = []
    for base in queries.bases(session, ready_only=True):
        choices.append((t("{name} · baseline", name=base.name), base.name))
        drafts = fitting(session, base)
        choices += [(f"{base.name} · {c.name} ({c.method})", f"{base.name}@{c.name}") for c in drafts]
        if drafts_itself(base):
            choices.append((t("{name} · its own multi-token prediction", name=base.name), base.name + OWN_CHOICE))
        choices.append((t("{name} · prompt lookup", name=base.name), base.name + LOOKUP_CHOICE))
    return choices


def value_of(run: Run, separator: str = "") -> str:
    """The choice of a run's target: its model, with a drafter without a checkpoint after `separator`."""
    drafter = (run.request.get("speculation") or {}).get("drafter")
    return f"{run.model}{separator}:{drafter}" if drafter in (LOOKUP, OWN_LAYERS) else run.model


def parse(value: str) -> ModelChoice:
    """The target of a value from `all_targets`."""
    for choice in (LOOKUP_CHOICE, OWN_CHOICE):
        if value.endswith(choice) and not server_of(value):
            return ModelChoice(value.removesuffix(choice), choice[1:])
    return ModelChoice(value)


def _base(session: Session, name: str) -> Base | None:
    return next((b for b in queries.bases(session, ready_only=True) if b.name == name), None)


def _figure(checkpoint: Checkpoint) -> str:
    tau, speedup = _number(checkpoint, "mean_accepted_length"), _number(checkpoint, "speedup")
    text = (f" · τ {tau:.2f}" if tau else "") + (f" · {speedup:.2f}×" if speedup else "")
    return f"{text} ({t(REFERENCE)})" if text and is_reference(checkpoint) else text


def _number(checkpoint: Checkpoint, name: str) -> float:
    value = checkpoint.figures.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
