"""What can be chosen from: bases, data sets, endpoints, as (words, value) for dropdowns. Values are ids."""

from sqlalchemy.orm import Session

from app.forms import ENDPOINT
from app.views.model_view import count
from speculoos.settings import Settings
from tracking import queries
from tracking.tables import Base, Dataset

Choices = list[tuple[str, str]]


def bases(session: Session) -> Choices:
    """Models that are ready, or being fetched (a job can wait for them)."""
    return [(base_words(b), b.id) for b in queries.bases(session) if b.state != "failed"]


def base_words(base: Base) -> str:
    parameters = (base.card or {}).get("parameters")
    size = f" · {count(parameters)} parameters" if parameters else ""
    return base.name + size + ("" if base.state == "ready" else " · being fetched")


def datasets(session: Session, kind: str) -> Choices:
    """Data sets of a kind that are ready, or being made."""
    return [(data_words(d), d.id) for d in queries.datasets(session, kind) if d.state != "failed"]


def data_words(data: Dataset) -> str:
    return f"{data.name} · {data.rows:,} rows" if data.state == "ready" else f"{data.name} · being made"


def answerers(session: Session, settings: Settings) -> Choices:
    """Who can answer prompts: bases here, and the operator's endpoints."""
    return bases(session) + [(f"endpoint {name}", ENDPOINT + name) for name in settings.endpoints]


def all_of(choices: Choices, wanted: list[str]) -> list[str]:
    """Those of `wanted` that are among the choices, else the first of these."""
    values = [value for _, value in choices]
    return [value for value in wanted if value in values] or values[:1]


def first(choices: Choices, preference: str | None = "") -> str | None:
    """`preference` where it is among the choices, else the first one."""
    values = [value for _, value in choices]
    return preference if preference in values else (values[0] if values else None)
