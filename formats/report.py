"""What the validation of an export found: checks that passed or not, and figures. JSON in the export."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    """One question with its answer; `detail` names the file and key where it failed, or says what was compared."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True)
class ExportReport:
    """All checks of one export. `subject` says what was exported: base, hashes, versions."""

    format: str
    method: str
    servers: str
    checks: tuple[Check, ...]
    figures: dict[str, Any] = field(default_factory=dict)
    subject: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> list[str]:
        """`name: detail` of the checks that did not pass."""
        return [f"{check.name}: {check.detail}" for check in self.checks if not check.passed]

    def to_json(self) -> dict[str, Any]:
        """As `validation.json` holds it."""
        return {"passed": self.passed, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "ExportReport":
        values = {key: value for key, value in data.items() if key != "passed"}
        return cls(**{**values, "checks": tuple(Check(**check) for check in data["checks"])})


def all_of(name: str, wrong: Sequence[str], right: str) -> Check:
    """Passed where nothing is wrong; else the first three sentences."""
    if not wrong:
        return Check(name, True, right)
    more = f" … and {len(wrong) - 3} more." if len(wrong) > 3 else ""
    return Check(name, False, " ".join(wrong[:3]) + more)
