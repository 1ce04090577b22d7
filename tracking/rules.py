"""What people may choose on the Settings page while everything runs: what is kept for how long, and limits of work.

Small numbers in one preference. Whoever goes by one looks it up when it is needed, so none needs a restart; what nobody
chose is as it was set from outside.
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
MOST = 100_000
LOOK_SECONDS = 5.0
"""How old `lately` may be."""


@dataclass(frozen=True)
class RetentionRule:
    """A number that people may choose: its name for them and its bounds. `at` says where they end: at `least` or at
    `most` what was set from outside holds too, so that nobody takes off from a page what guards a machine."""

    label: str
    least: int = 0
    most: int = MOST
    at: str = ""

    def in_force(self, outside: int | None, chosen: int) -> int:
        """Of the two the stricter, where the machine's own counts; nothing from outside is None or 0."""
        return {"least": max, "most": min}[self.at](outside, chosen) if self.at and outside else chosen

    @property
    def bounds(self) -> str:
        """`0 (for ever) to 100,000`."""
        return f"{self.least:,}{'' if self.least else ' (for ever)'} to {self.most:,}"


KEEPING = {
    "keep_runs_days": RetentionRule("Chats and comparisons, days"),
    "keep_logs_days": RetentionRule("Logs of ended jobs, days"),
    "keep_logs_mb": RetentionRule("Logs of ended jobs, MB"),
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
RULES = {**KEEPING, **LIMITS}

_known: dict[tuple[Path, str], tuple[float, dict[str, int]]] = {}
"""What `lately` saw last, and when, by home and database."""


def chosen(session: Session) -> dict[str, int]:
    """The rules that people chose."""
    row = session.get(Preference, KEY)
    found = row.value if row else {}
    return {name: found[name] for name in RULES if type(found.get(name)) is int}


def combined(settings: Settings, values: dict[str, int]) -> Settings:
    """The settings with rules that people chose."""
    return replace(settings, **{name: RULES[name].in_force(getattr(settings, name), v) for name, v in values.items()})


def applied(settings: Settings) -> Settings:
    """The settings with the rules that people chose."""
    with reading(settings) as session:
        return combined(settings, chosen(session))


def lately(settings: Settings) -> Settings:
    """`applied` for those who ask all the time: some seconds old, and as it was while the database is away."""
    which = (settings.home, settings.database_url)
    at, values = _known.get(which, (0.0, {}))
    if not at or time.monotonic() - at >= LOOK_SECONDS:
        with suppress(SpeculoosError, SQLAlchemyError), reading(settings) as session:
            values = chosen(session)
        _known[which] = (time.monotonic(), values)
    return combined(settings, values)


def keep(settings: Settings, values: dict[str, int | None]) -> None:
    """Choose rules; None leaves one to what was set from outside, and rules that are not named stay as they are.
    Raises BadInput for numbers that cannot be."""
    for name, value in values.items():
        _check(name, value)
    with writing(settings) as session:
        row = session.get(Preference, KEY, with_for_update=True)
        both = {**(row.value if row else {}), **values}
        session.merge(Preference(key=KEY, value={name: value for name, value in both.items() if value is not None}))


def _check(name: str, value: int | None) -> None:
    if name not in RULES:
        raise BadInput(f"{name}: there is no such rule.")
    rule = RULES[name]
    if value is not None and not rule.least <= value <= rule.most:
        raise BadInput(f"{rule.label}: expected {rule.bounds}, got {value:,}.")
