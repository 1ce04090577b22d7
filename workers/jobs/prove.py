"""Job kind `prove`: the same draft and questions in this engine and in a server, side by side."""

from typing import ClassVar, Literal

from sqlalchemy.orm import Session

from formats.engines import ENGINES, find_engine
from models.methods.settings import setting
from speculoos.errors import Unsupported
from speculoos.settings import Settings
from tracking import queries
from tracking.tables import Base, Evaluation
from workers.jobs import sizes
from workers.jobs.arguments import Operand, changed_options, option
from workers.jobs.evaluate import LIMIT_HELP, MAX_NUMBER, STEPS_PER_TOKEN, Measurement
from workers.jobs.request import Namer, Need
from workers.jobs.serve import engine_command, not_installed


class Prove(Measurement):
    """Exports a draft, starts the server with and without it, asks the questions greedily there and here, and compares
    acceptance by position, τ and texts. The result is an evaluation of the server."""

    kind: ClassVar[str] = "prove"
    title: ClassVar[str] = "Compare with a server"
    verb: ClassVar[str] = "Compare"
    output: ClassVar = ("evaluation_id", Evaluation)

    base_id: str
    checkpoint_id: str
    dataset_id: str = ""
    engine: Literal[*ENGINES] = setting("llamacpp", "Server: llamacpp, vllm or sglang.", label="Server")
    limit: int = setting(20, LIMIT_HELP, 1, MAX_NUMBER, label="Max questions")
    max_tokens: int = setting(96, "Max new tokens per turn.", 1, MAX_NUMBER, label="Max tokens per turn")
    tokens: int = setting(0, "Draft tokens per step; 0: as tuned.", 0, 64, label="Draft tokens")
    evaluation_id: str = ""

    def check_settings(self, settings: Settings) -> None:
        if not any(engine_command(settings, find_engine(self.engine))):
            raise not_installed(find_engine(self.engine))

    def check(self, session: Session) -> None:
        method = queries.find_checkpoint(session, self.checkpoint_id).method
        if method and not find_engine(self.engine).format_of(method, "auto"):
            raise Unsupported(f"{find_engine(self.engine).title} does not support drafts of method {method}.")

    def default_name(self, session: Session) -> str:
        return f"{super().default_name(session)} in {find_engine(self.engine).title}"

    def columns(self, session: Session) -> dict:
        rows = {"base_id": self.base_id, "checkpoint_id": self.checkpoint_id, "config": self.to_json()}
        return {**rows, **self.question_columns(session), "temperature": 0.0, "top_p": 1.0, "source": self.engine}

    def need(self, session: Session) -> Need:
        """Every question with and without the draft, here and there."""
        need = self.decoding_need(session, 2 * self.tokens_of_questions(session) * STEPS_PER_TOKEN)
        base = sizes.require_row(session, Base, self.base_id)
        return Need(work=need.work, disk=sizes.weights_bytes(base), memory=need.memory + 2e9)

    def command(self, named: Namer) -> list[str]:
        arguments = ["servers", "prove", Operand(self.model(named)), *option("questions", named(self.dataset_id))]
        return [*arguments, *changed_options(self, *self.options())]
