"""Costs of drafting and verification on one machine, in milliseconds: measured, or read from another machine's file.

The JSON file is written by `speculoos plan --keep FILE`; docs/planner.md explains its keys:

    {"machine": {…}, "target_ms": {"1": {"1": 31.0, "4": 32.5}, "8": {…}}, "other_ms": 0.3,
     "draft_ms": {"chain": {"1": 1.2, "5": 5.9}, "tree": {…}}, "pass_ms": {"1": 1.1, "8": 1.6},
     "standalone_ms": {"2": {"1": 2.4, "8": 3.0}, "4": {…}}}
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from decoding.step_costs import interpolate
from evaluation.shapes import CHAIN, DraftShape
from speculoos.errors import BadInput

Points = dict[int, float]
Count = Annotated[int, Field(ge=1, lt=10**9)]
Milliseconds = Annotated[float, Field(ge=0, lt=1e9, strict=True)]
FilePoints = dict[Count, Milliseconds]


@dataclass(frozen=True)
class Costs:
    """Costs in milliseconds. `target`: sequences → rows per sequence → one forward. `draft`: chain or tree → depth →
    drafting for one sequence. `passes`: rows → one pass of the draft network. `standalone`: layers → sequences → one
    drafted token per sequence. `other`: rest of a step."""

    target: dict[int, Points]
    draft: dict[str, Points] = field(default_factory=dict)
    passes: Points = field(default_factory=dict)
    standalone: dict[int, Points] = field(default_factory=dict)
    other: float = 0.0
    machine: dict[str, Any] = field(default_factory=dict)

    @property
    def batches(self) -> list[int]:
        """Measured batch sizes."""
        return sorted(self.target)

    def verify(self, rows: int, batch: int) -> float:
        """One forward of `rows` rows of each of `batch` sequences."""
        return interpolate(self.target[batch], rows)

    def drafting(self, shape: DraftShape, batch: int) -> float:
        """Drafting `shape` for each of `batch` sequences: the cost for one, plus the additional cost of the draft's
        passes with the rows of all sequences."""
        if shape.depth == 0:
            return 0.0
        points = self.draft.get(shape.kind) or self.draft.get(CHAIN) or {}
        if not points:
            raise BadInput("These figures have no draft_ms, so a draft's speed cannot be predicted.")
        extra = sum(self._pass_ms(rows * batch) - self._pass_ms(rows) for rows in shape.levels) if self.passes else 0.0
        return _extrapolate(points, shape.depth) + max(extra, 0.0)

    def _pass_ms(self, rows: int) -> float:
        return _extrapolate(self.passes, rows)

    def step(self, shape: DraftShape, batch: int = 1) -> float:
        """One step: drafting, verification and the rest."""
        return self.verify(shape.nodes, batch) + self.drafting(shape, batch) + self.other

    def standalone_step(self, layers: int, depth: int) -> float:
        """A step of one sequence with a chain of `depth` from a standalone draft of `layers` layers."""
        return self.verify(depth + 1, 1) + depth * self.standalone[layers][1] + self.other

    def to_json(self) -> dict[str, Any]:
        """The content of the file."""
        return {
            "machine": self.machine,
            "target_ms": _rounded(self.target),
            "draft_ms": _rounded(self.draft),
            "pass_ms": _rounded(self.passes),
            "standalone_ms": _rounded(self.standalone),
            "other_ms": round(self.other, 4),
        }

    @classmethod
    def from_json(cls, data: Any, name: str = "the file") -> "Costs":
        """Parse a file's content. Raises BadInput that names the invalid key."""
        try:
            file = _CostsFile.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part)[:20] for part in first["loc"])
            raise BadInput(f"{name}: {where}: {first['msg']} (see docs/planner.md).") from None
        target, standalone = file.target_ms, file.standalone_ms
        if 1 not in target or 1 not in target[1]:
            raise BadInput(f'{name}: target_ms needs {{"1": {{"1": …}}}}, a forward of one row of one sequence.')
        if not all(points and min(points.values()) > 0 for points in target.values()):
            raise BadInput(f"{name}: target_ms: each number of sequences needs forwards that take time.")
        if standalone and (len(target[1]) < 2 or not all(1 in points for points in standalone.values())):
            raise BadInput(f'{name}: standalone_ms needs "1" of each, and target_ms forwards of more rows than one.')
        machine = file.machine if isinstance(file.machine, dict) else {"name": str(file.machine or "")}
        return cls(target, dict(file.draft_ms), file.pass_ms, standalone, file.other_ms, machine)


class _CostsFile(BaseModel):
    """The content of the file."""

    target_ms: dict[Count, FilePoints]
    draft_ms: dict[Literal["chain", "tree"], FilePoints] = {}
    pass_ms: FilePoints = {}
    standalone_ms: dict[Count, FilePoints] = {}
    other_ms: Milliseconds = 0.0
    machine: Any = {}


def read_costs(path: str | Path) -> Costs:
    """Read another machine's costs. Raises BadInput for an invalid file."""
    path = Path(path).expanduser()
    try:
        return Costs.from_json(json.loads(path.read_text(encoding="utf-8")), path.name)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror or error}).") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path.name}: is not valid JSON ({error}).") from None


def _extrapolate(points: Mapping[int, float], x: int) -> float:
    xs = sorted(points)
    if x <= xs[-1] or len(xs) < 2:
        return interpolate(points, x)
    a, b = xs[-2:]
    return points[b] + (x - b) * max((points[b] - points[a]) / (b - a), 0.0)


def _rounded(table: Mapping[Any, Any]) -> dict[str, Any]:
    rows = table.items()
    return {str(k): _rounded(v) if isinstance(v, dict) else round(v, 4) for k, v in rows}
