"""Job kind `tune`: finds the tree with which a checkpoint generates the most tokens per second on a machine."""

from typing import ClassVar

from sqlalchemy.orm import Session

from models.methods.settings import setting
from tracking import queries
from tracking.tables import Base, Table
from workers.jobs import sizes
from workers.jobs.evaluate import DTYPE_HELP, check_sampling, model_inputs
from workers.jobs.pace import TUNING_SHARE
from workers.jobs.request import Namer, Need, Rate, Request
from workers.jobs.words import Operand, changed_options, option


class Tune(Request):
    """Measures on the worker's device with responses to `limit` questions. The result is stored in the checkpoint's
    row, and with `keep` the tree in its files; there is no output row."""

    kind: ClassVar[str] = "tune"
    title: ClassVar[str] = "Tune the tree"
    rate: ClassVar[Rate] = Rate(share=TUNING_SHARE, unit="reads")

    base_id: str
    checkpoint_id: str
    dataset_id: str = ""
    limit: int = setting(6, "Maximum number of questions.", 1)
    max_tokens: int = setting(48, "Maximum new tokens per response.", 8)
    dtype: str = setting("", DTYPE_HELP, label="Precision")
    keep: bool = setting(True, "Save the tree in the checkpoint if it is faster.")

    def inputs(self) -> list[tuple[type[Table], str]]:
        return model_inputs(self)

    def check_options(self) -> None:
        check_sampling((), (), [self.dtype])

    def default_name(self, session: Session) -> str:
        return queries.model_name(session, self.base_id, self.checkpoint_id or None)

    def need(self, session: Session) -> Need:
        base = sizes.found(session, Base, self.base_id)
        work = sizes.tuning_bytes(base, self.limit, self.max_tokens)
        return Need(work, 1e5, sizes.weights_bytes(base) * 1.3 + 5e8)

    def command(self, named: Namer) -> list[str]:
        words = ["tune", Operand(f"{named(self.base_id)}@{named(self.checkpoint_id)}")]
        words += option("questions", named(self.dataset_id))
        return [*words, *changed_options(self, *type(self).options())]
