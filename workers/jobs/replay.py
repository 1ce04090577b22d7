"""Job kind `replay`: evaluates a checkpoint on recorded responses, without generating any."""

from typing import Any, ClassVar

from sqlalchemy.orm import Session

from models.methods.settings import setting
from tracking import queries
from tracking.tables import Base, Dataset, Evaluation, Table
from workers.jobs import sizes
from workers.jobs.evaluate import model_inputs
from workers.jobs.request import Namer, Need, Rate, Request
from workers.jobs.words import Operand, changed_options, option, pairs

STEPS_PER_TOKEN = 0.5
"""Drafted steps per recorded token, at τ 2."""


class ReplayRequest(Request):
    """At most `limit` recorded responses of data set `dataset_id`; the first `show` are stored as chats."""

    kind: ClassVar[str] = "replay"
    title: ClassVar[str] = "Replay"
    output: ClassVar = ("evaluation_id", Evaluation)
    rate: ClassVar[Rate] = Rate(share=1.0, unit="reads")

    base_id: str
    checkpoint_id: str
    dataset_id: str
    limit: int = setting(50, "Maximum number of responses.", 1)
    show: int = setting(3, "Responses to store for the Playground.", 0)
    drafting: dict[str, Any] = {}
    evaluation_id: str = ""

    def inputs(self) -> list[tuple[type[Table], str]]:
        return model_inputs(self)

    def default_name(self, session: Session) -> str:
        model = queries.model_name(session, self.base_id, self.checkpoint_id)
        return f"{model} on {queries.find_dataset(session, self.dataset_id).name}"

    def columns(self, session: Session) -> dict[str, Any]:
        return {"base_id": self.base_id, "checkpoint_id": self.checkpoint_id or None, "config": self.to_json()}

    def need(self, session: Session) -> Need:
        """Every recorded response once, in speculative steps."""
        base = sizes.found(session, Base, self.base_id)
        data = sizes.found(session, Dataset, self.dataset_id)
        rows = sizes.expected_rows(session, data)
        tokens = sizes.answer_tokens(data, rows) * min(self.limit / rows, 1.0) if rows else 0.0
        return Need(tokens * STEPS_PER_TOKEN * sizes.step_bytes(base), 1e5, sizes.weights_bytes(base) * 1.3 + 5e8)

    def command(self, named: Namer) -> list[str]:
        draft = f"{named(self.base_id)}@{named(self.checkpoint_id)}"
        words = ["replay", "run", Operand(named(self.dataset_id)), *option("draft", draft), "--limit", str(self.limit)]
        return [*words, *changed_options(self, "show"), *pairs("--set", self.drafting)]
