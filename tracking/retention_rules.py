"""Retention times that users can change on the Settings page at run time.

They are stored as numbers in one preference. A rule that is not set has the value of the environment's settings.
"""

from dataclasses import replace

from sqlalchemy.orm import Session

from speculoos.errors import BadInput
from speculoos.settings import Settings
from tracking.db import reading, writing
from tracking.tables import Preference

KEY = "retention-rules"
MAX_RULE_VALUE = 100_000
RETENTION = {
    "keep_runs_days": "Chats and comparisons, days",
    "keep_logs_days": "Logs of ended jobs, days",
    "keep_uploads_days": "Uploads, days",
    "keep_exports_days": "Downloads, days",
    "keep_states_days": "States of failed training runs, days",
    "keep_copies": "Copies of the database",
}


def chosen_rules(session: Session) -> dict[str, int]:
    row = session.get(Preference, KEY)
    values = row.value if row else {}
    return {name: values[name] for name in RETENTION if type(values.get(name)) is int}


def current_settings(settings: Settings) -> Settings:
    """The settings with the rules that users have set."""
    with reading(settings) as session:
        return replace(settings, **chosen_rules(session))


def save_rules(settings: Settings, values: dict[str, int | None]) -> None:
    """Set rules; None restores the environment's setting. Raises BadInput for an invalid name or value."""
    for name, value in values.items():
        if name not in RETENTION:
            raise BadInput(f"{name}: there is no such rule.")
        if value is not None and not 0 <= value <= MAX_RULE_VALUE:
            bounds = f"0 (for ever) to {MAX_RULE_VALUE:,}"
            raise BadInput(f"{RETENTION[name]}: expected {bounds}, got {value:,}.")
    with writing(settings) as session:
        row = session.get(Preference, KEY, with_for_update=True)
        merged = {**(row.value if row else {}), **values}
        session.merge(Preference(key=KEY, value={name: value for name, value in merged.items() if value is not None}))
