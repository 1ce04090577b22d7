"""Job kind `plan`: predicts the throughput of drafts before training."""

from typing import Any, ClassVar

from pydantic import field_validator
from sqlalchemy.orm import Session

from models.methods.settings import setting
from tracking import queries
from tracking.tables import Base, Table
from workers.jobs import sizes
from workers.jobs.evaluate import model_inputs
from workers.jobs.parsing import MOST_BATCH, MOST_LAYERS, parse_counts
from workers.jobs.request import Namer, Need, Rate, Request
from workers.jobs.words import Operand, changed_options, option

FORWARDS = 60
"""Six rounds of ten row counts; a batch of n sequences costs as much as 3 + n single rows, including the drafts of a
round."""


class PlanRequest(Request):
    """A plan for a base with or without a checkpoint. `costs`: costs of another machine (`evaluation.costs`); empty:
    measured by the job. The prediction is the job's result; there is no output row."""

    kind: ClassVar[str] = "plan"
    title: ClassVar[str] = "Plan"
    retired: ClassVar[tuple[str, ...]] = ("draft_hidden_size",)
    rate: ClassVar[Rate] = Rate(share=1.0, unit="reads")

    base_id: str
    checkpoint_id: str = ""
    dataset_id: str = ""
    limit: int = setting(6, "Maximum number of questions.", 1)
    max_tokens: int = setting(48, "Maximum new tokens per response.", 8)
    batches: list[int] = setting([1, 2, 4, 8, 16], "Batch sizes to plan for, such as 1,4,16.", label="Batch sizes")
    layers: list[int] = setting(
        [2, 4, 8], "Numbers of layers of standalone drafts.", label="Layers of standalone drafts"
    )
    costs: dict[str, Any] = {}

    @field_validator("batches", mode="before")
    @classmethod
    def _parse_batches(cls, value: Any) -> Any:
        return parse_counts("Batch sizes", value, MOST_BATCH) if isinstance(value, str) else value

    @field_validator("layers", mode="before")
    @classmethod
    def _parse_layers(cls, value: Any) -> Any:
        return parse_counts("Layers of standalone drafts", value, MOST_LAYERS) if isinstance(value, str) else value

    def inputs(self) -> list[tuple[type[Table], str]]:
        return model_inputs(self)

    def default_name(self, session: Session) -> str:
        return queries.model_name(session, self.base_id, self.checkpoint_id or None)

    def need(self, session: Session) -> Need:
        """The questions, answered without and with the draft, and forward passes per batch size and row count."""
        if self.costs:
            return Need(0.0, 1e5)
        base = sizes.found(session, Base, self.base_id)
        generated = self.limit * self.max_tokens * 2 if self.checkpoint_id else 0
        forwards = FORWARDS * sum(3 + batch for batch in self.batches)
        return Need((generated + forwards) * sizes.step_bytes(base), 1e5, sizes.weights_bytes(base) * 1.5 + 5e8)

    def command(self, named: Namer) -> list[str]:
        model = named(self.base_id) + (f"@{named(self.checkpoint_id)}" if self.checkpoint_id else "")
        words = ["plan", Operand(model), *(["--machine", "FILE"] if self.costs else [])]
        return [*words, *option("questions", named(self.dataset_id)), *changed_options(self, *type(self).options())]
