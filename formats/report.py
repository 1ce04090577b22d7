"""The validation report of an export: checks and figures, stored as JSON in the export."""

from dataclasses import asdict, dataclass, field
from typing import Any

REPORT = "validation.json"


@dataclass(frozen=True)
class Check:
    """The result of one check; `detail` names the file and key of a failure, or says what was compared."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True)
class ExportReport:
    """All checks of one export. `subject` describes the exported checkpoint: base model, revision, hashes."""

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
        """The content of `validation.json`."""
        return {"passed": self.passed, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "ExportReport":
        values = {key: value for key, value in data.items() if key != "passed"}
        return cls(**{**values, "checks": tuple(Check(**check) for check in data["checks"])})
