"""Choices of dropdowns as (label, id): base models, datasets, endpoints."""

from sqlalchemy.orm import Session

from app.forms import BUILT_IN, ENDPOINT
from app.i18n import plural, t
from app.widgets.formatting import count
from speculoos.settings import Settings
from speculoos.suites import BUILT_IN_SUITE_NAME as BUILT_IN_SUITE
from speculoos.suites import suite_title
from tracking import queries
from tracking.tables import Base, Dataset
from workers.jobs.evaluate import suite_of

Choices = list[tuple[str, str]]


def bases(session: Session) -> Choices:
    """Base models that are ready or being downloaded (a job can wait for them)."""
    return [(base_label(b), b.id) for b in queries.bases(session) if b.state != "failed"]


def base_label(base: Base) -> str:
    parameters = (base.card or {}).get("parameters")
    size = " · " + t("{count} parameters", count=count(parameters)) if parameters else ""
    return base.name + size + ("" if base.state == "ready" else " · " + t("being downloaded"))


def datasets(session: Session, kind: str) -> Choices:
    return [(dataset_label(d), d.id) for d in queries.datasets(session, kind) if d.state != "failed"]


def dataset_label(data: Dataset) -> str:
    rows = plural("{n:,} row", "{n:,} rows", data.rows) if data.state == "ready" else t("being created")
    return f"{data.name} · {rows}"


def response_models(session: Session, settings: Settings) -> Choices:
    """Models that can generate responses: the configured endpoints, which are faster, then local base models."""
    names = settings.current().endpoints
    return [(t("endpoint {name}", name=name), ENDPOINT + name) for name in names] + bases(session)


def valid_choices(choices: Choices, wanted: list[str]) -> list[str]:
    """Those of `wanted` that are among the choices, otherwise the first choice."""
    values = [value for _, value in choices]
    return [value for value in wanted if value in values] or values[:1]


def valid_choice(choices: Choices, preference: str | None = "") -> str | None:
    """`preference` if it is among the choices, otherwise the first one; None without choices."""
    values = [value for _, value in choices]
    return preference if preference in values else (values[0] if values else None)


def suite_choices(session: Session) -> Choices:
    """The built-in questions (once, even if they were added as a dataset), imported suites, and every prompt set."""
    sets = queries.datasets(session, "prompts", ready_only=True)
    options = [(suite_label(data), data.id) for data in sets if suite_of(data) != BUILT_IN_SUITE]
    return [(suite_title(BUILT_IN_SUITE), BUILT_IN), *options]


def suite_label(data: Dataset) -> str:
    title = suite_title((data.config or {}).get("suite") or "")
    name = f"{title} ({data.name})" if title and title != data.name else data.name
    return f"{name} · " + plural("{n:,} question", "{n:,} questions", data.rows)
