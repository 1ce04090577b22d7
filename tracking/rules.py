"""Retention times and job limits that users can change on the Settings page at run time.

They are stored as numbers in one preference and read whenever needed, so that no change needs a restart. A rule that is
not set has the value of the environment's settings.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from speculoos.errors import BadInput, SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading, writing
from tracking.tables import Preference

KEY = "retention-rules"
MAX_RULE_VALUE = 100_000
RULES_CACHE_SECONDS = 5.0  # maximum age of cached rules


@dataclass(frozen=True)
class RetentionRule:
    """A number that users can set: its label and bounds. With `at` "least" or "most", the environment's setting is a
    further lower or upper bound, so that a page cannot remove the protection of a machine."""

    label: str
    least: int = 0
    most: int = MAX_RULE_VALUE
    at: str = ""

    def in_force(self, environment: int | None, value: int) -> int:
        """The effective value: with `at`, the stricter of both. `environment` is None or 0 if not set."""
        return {"least": max, "most": min}[self.at](environment, value) if self.at and environment else value

    @property
    def bounds(self) -> str:
        """`0 (for ever) to 100,000`."""
        return f"{self.least:,}{'' if self.least else ' (for ever)'} to {self.most:,}"


RETENTION = {
    "keep_runs_days": RetentionRule("Chats and comparisons, days"),
    "keep_logs_days": RetentionRule("Logs of ended jobs, days"),
    "keep_uploads_days": RetentionRule("Uploads, days"),
    "keep_exports_days": RetentionRule("Downloads, days"),
    "keep_states_days": RetentionRule("States of failed trainings, days"),
    "keep_copies": RetentionRule("Copies of the database"),
}
LIMITS = {
    "max_rows": RetentionRule("Most rows read from one file", 1, 100_000_000),
    "job_memory_mb": RetentionRule("Memory of one job at most, MB", 1024, 100_000_000, at="most"),
    "min_disk_mb": RetentionRule("Free disk below which jobs pause, MB", 256, 10_000_000, at="least"),
    "min_memory_mb": RetentionRule("Free memory below which jobs pause, MB", 128, 10_000_000, at="least"),
}
RULES = {**RETENTION, **LIMITS}

_cache: dict[tuple[Path, str], tuple[float, dict[str, int]]] = {}
"""Cached rules: (monotonic time, rules) by home and database."""


def chosen_rules(session: Session) -> dict[str, int]:
    row = session.get(Preference, KEY)
    values = row.value if row else {}
    return {name: values[name] for name in RULES if type(values.get(name)) is int}


def apply_rules(settings: Settings, values: dict[str, int]) -> Settings:
    return replace(settings, **{name: RULES[name].in_force(getattr(settings, name), v) for name, v in values.items()})


def current_settings(settings: Settings) -> Settings:
    """The settings with the rules that users have set."""
    with reading(settings) as session:
        return apply_rules(settings, chosen_rules(session))


def cached_settings(settings: Settings) -> Settings:
    """The settings with the rules that users have set, at most some seconds old, and the last known ones while the
    database is unavailable."""
    key = (settings.home, settings.database_url)
    at, values = _cache.get(key, (0.0, {}))
    if not at or time.monotonic() - at >= RULES_CACHE_SECONDS:
        with suppress(SpeculoosError, SQLAlchemyError), reading(settings) as session:
            values = chosen_rules(session)
        _cache[key] = (time.monotonic(), values)
    return apply_rules(settings, values)


def save_rules(settings: Settings, values: dict[str, int | None]) -> None:
    """Set rules. None restores the environment's setting; other rules do not change. Raises BadInput for an invalid
    name or value."""
    for name, value in values.items():
        if (rule := RULES.get(name)) is None:
            raise BadInput(f"{name}: there is no such rule.")
        if value is not None and not rule.least <= value <= rule.most:
            raise BadInput(f"{rule.label}: expected {rule.bounds}, got {value:,}.")
    with writing(settings) as session:
        row = session.get(Preference, KEY, with_for_update=True)
        merged = {**(row.value if row else {}), **values}
        session.merge(Preference(key=KEY, value={name: value for name, value in merged.items() if value is not None}))
