"""Job kinds that measure or predict speed: `evaluate`, `plan`, `replay` and `tune`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import ValidationInfo, field_validator
from sqlalchemy.orm import Session

from models.methods import trees
from models.methods.settings import setting
from speculoos.errors import BadInput
from speculoos.loads import MAX_CONCURRENCY, ROUNDS
from speculoos.settings import DTYPES
from speculoos.suites import BUILT_IN_SUITE_NAME, OWN_SUITE_NAME, suite_title
from tracking import queries
from tracking.tables import Base, Dataset, Evaluation
from workers.jobs import sizes
from workers.jobs.arguments import MAX_BATCH, MAX_LAYERS, Operand, changed_options, option, pairs, parse_counts
from workers.jobs.builtin import QUESTIONS, built_in_of
from workers.jobs.estimates import TUNING_SHARE
from workers.jobs.request import Namer, Need, Rate, Request

MAX_TEMPERATURE = 5.0
STEPS_PER_TOKEN = 1.7  # decoding steps per token: one plain step, and 0.7 drafted ones at τ 1.4
REPLAY_STEPS_PER_TOKEN = 0.5  # drafted steps per recorded token, at τ 2
TUNING_STEPS = 250
"""Forwards and steps of a tuning besides those of its questions (`decoding.tuning.measure_forward`: wide forwards take
longer)."""
LAYERS = "Layers of standalone drafts"
FORWARDS = 60
"""Six rounds of ten row counts; a batch of n sequences costs as much as 3 + n single rows, including the drafts of a
round."""
REPEATED = 3
"""On a busy machine an evaluation of a draft repeats its questions, up to this many times the first pass's time."""
MAX_NUMBER = 100_000
DTYPE_HELP = "Precision of base and draft; default SPECULOOS_DTYPE."
LIMIT_HELP = "Questions to answer; those of a suite are taken evenly from its categories."
SEED_HELP = "Seed of sampling."


class Measurement(Request):
    """Base class of these kinds: a base with or without a checkpoint, and a dataset ("" for built-in questions)."""

    rate: ClassVar[Rate] = Rate(share=1.0, unit="bytes_read")

    def default_name(self, session: Session) -> str:
        return queries.model_name(session, self.base_id, self.checkpoint_id or None)

    def decoding_need(self, session: Session, steps: float) -> Need:
        """Need of `steps` decoding steps, each of which reads the weights once."""
        base = sizes.require_row(session, Base, self.base_id)
        return Need(work=steps * sizes.step_bytes(base), disk=1e5, memory=sizes.weights_bytes(base) * 1.5 + 5e8)

    def question_columns(self, session: Session) -> dict[str, str]:
        """Columns of `Evaluation` that name the questions."""
        data = session.get(Dataset, self.dataset_id) if self.dataset_id else None
        suite = suite_of(data)
        return {"suite": suite, "questions": (suite_title(suite) or data.name if data else suite_title(suite))[:200]}

    def tokens_of_questions(self, session: Session) -> float:
        """Maximum number of generated tokens, if all questions are answered once."""
        turns = sizes.turns(sizes.require_row(session, Dataset, self.dataset_id)) if self.dataset_id else 1.0
        return sizes.questions(session, self.dataset_id, self.limit) * turns * self.max_tokens

    def model(self, named: Namer) -> str:
        """`base` or `base@checkpoint`, for a command."""
        return named(self.base_id) + (f"@{named(self.checkpoint_id)}" if self.checkpoint_id else "")


class Evaluate(Measurement):
    """Evaluation on the questions of a dataset, or on the built-in ones if `dataset_id` is empty. With `endpoint` that
    server is measured; `base_id` and `checkpoint_id` are the models it serves, if known."""

    kind: ClassVar[str] = "evaluate"
    title: ClassVar[str] = "Evaluate"
    output: ClassVar = ("evaluation_id", Evaluation)

    base_id: str = ""
    checkpoint_id: str = ""
    dataset_id: str = ""
    limit: int = setting(20, LIMIT_HELP, 1, MAX_NUMBER, label="Max questions")
    max_tokens: int = setting(128, "Max new tokens per turn.", 1, MAX_NUMBER, label="Max tokens per turn")
    drafting: dict[str, Any] = {}  # options of decoding.drafters: tree, depth, …
    temperature: float = setting(0.0, "0 is greedy.", 0, MAX_TEMPERATURE)
    top_p: float = setting(1.0, "Sample from the most likely tokens with this total probability.", label="Top-p")
    seed: int = setting(0, SEED_HELP)
    dtype: str = setting("", DTYPE_HELP, label="Precision")
    max_minutes: float | None = setting(
        None, "Start no further questions after this time.", 0, 10**6, label="Time limit (minutes)"
    )
    endpoint: str = setting("", "Endpoint of settings.toml to measure; the result is stored.", label="Server")
    endpoint_model: str = setting(
        "", "Model name to request from that endpoint; empty: the one in settings.toml.", label="Model name"
    )
    plain_model: str = setting(
        "", "Model name of that base without a draft, to measure the speedup.", label="Model name without a draft"
    )
    plain_endpoint: str = setting(
        "", "Endpoint that serves that base without a draft; empty: the same one.", label="Server without a draft"
    )
    concurrency: list[int] = setting(
        [], "Also measure the server at these numbers of concurrent requests, such as 1,4,16.", label="Concurrency"
    )
    matrix_id: str = ""  # the matrix of this cell
    evaluation_id: str = ""

    @field_validator("concurrency", mode="before")
    @classmethod
    def _parse_concurrency(cls, value: Any) -> Any:
        return parse_counts("Concurrency", value, MAX_CONCURRENCY) if isinstance(value, str) else value

    @property
    def drafts(self) -> bool:
        """Whether a draft is measured besides plain decoding."""
        return bool(self.checkpoint_id) or self.drafting.get("drafter", "none") != "none"

    @property
    def max_passes(self) -> int:
        """Maximum number of passes over the questions."""
        return REPEATED if self.drafts and not self.endpoint else 1

    def check_options(self) -> None:
        check_sampling([self.temperature], [self.top_p], [self.dtype])
        if self.endpoint and (self.drafting or self.dtype or self.max_minutes):
            raise BadInput(
                "A server sets its own draft and precision and has no time limit; leave the draft's options, precision "
                "and time limit out, or omit the server."
            )
        if (self.plain_endpoint or self.concurrency) and not self.endpoint:
            raise BadInput("Concurrency and a server without a draft are for servers: choose the server to measure.")
        if not (self.endpoint or self.base_id):
            raise BadInput("Choose what to measure: a base model, or an endpoint.")

    def default_name(self, session: Session) -> str:
        """`starter@my-heads`; for an endpoint its model name and its name."""
        model = super().default_name(session) if self.base_id else ""
        if not self.endpoint:
            return model
        return f"{self.endpoint_model or model or 'its model'} at {self.endpoint}"

    def columns(self, session: Session) -> dict[str, Any]:
        return {
            "base_id": self.base_id or None,
            "checkpoint_id": self.checkpoint_id or None,
            "config": self.to_json(),
            "matrix_id": self.matrix_id or None,
            **self.question_columns(session),
            "temperature": self.temperature,
            "top_p": self.top_p,
            "tree": trees.drafting_text(self.drafting),
            "source": self.endpoint,
        }

    def need(self, session: Session) -> Need:
        """Every question twice, plain and with the draft; a step reads the weights once. For a server: tokens, of which
        c concurrent requests are assumed to give √c times as many per second."""
        tokens = self.tokens_of_questions(session)
        if self.endpoint:
            loads = sum(max(1, ROUNDS * load / self.limit) / load**0.5 for load in self.concurrency)
            return Need(work=tokens * (1 + loads) * (2 if self.plain_model or self.plain_endpoint else 1), disk=1e5)
        need = self.decoding_need(session, tokens * (STEPS_PER_TOKEN if self.drafts else 1))
        return replace(need, minutes=self.max_minutes)

    def command(self, named: Namer) -> list[str]:
        arguments = [
            "evaluate",
            *option("model", named(self.base_id)),
            *option("checkpoint", named(self.checkpoint_id)),
        ]
        of_servers = ("endpoint", "endpoint_model", "plain_model", "plain_endpoint", "concurrency")
        arguments += changed_options(self, *of_servers)
        arguments += option("questions", named(self.dataset_id))
        arguments += ["--limit", str(self.limit), "--max-tokens", str(self.max_tokens)]
        done = (*of_servers, "limit", "max_tokens")
        arguments += changed_options(self, *(key for key in type(self).options() if key not in done))
        return [*arguments, *pairs("--draft", self.drafting)]


class PlanRequest(Measurement):
    """A plan for a base with or without a checkpoint. `costs`: costs of another machine (`evaluation.costs`); empty:
    measured by the job. The prediction is the job's result; there is no output row."""

    kind: ClassVar[str] = "plan"
    title: ClassVar[str] = "Plan"
    retired: ClassVar[tuple[str, ...]] = ("draft_hidden_size",)
    work: ClassVar[str] = "workers.child.work.measure:run_plan"

    base_id: str
    checkpoint_id: str = ""
    dataset_id: str = ""
    limit: int = setting(6, LIMIT_HELP, 1)
    max_tokens: int = setting(48, "Max new tokens per response.", 8)
    batches: list[int] = setting([1, 2, 4, 8, 16], "Batch sizes to plan for, such as 1,4,16.", label="Batch sizes")
    layers: list[int] = setting([2, 4, 8], "Numbers of layers of standalone drafts.", label=LAYERS)
    costs: dict[str, Any] = {}

    @field_validator("batches", "layers", mode="before")
    @classmethod
    def _parse_counts(cls, value: Any, field: ValidationInfo) -> Any:
        label, most = ("Batch sizes", MAX_BATCH) if field.field_name == "batches" else (LAYERS, MAX_LAYERS)
        return parse_counts(label, value, most) if isinstance(value, str) else value

    def need(self, session: Session) -> Need:
        """The questions, answered without and with the draft, and forward passes per batch size and row count."""
        if self.costs:
            return Need(disk=1e5)
        generated = self.limit * self.max_tokens * 2 if self.checkpoint_id else 0
        return self.decoding_need(session, generated + FORWARDS * sum(3 + batch for batch in self.batches))

    def command(self, named: Namer) -> list[str]:
        arguments = ["plan", Operand(self.model(named)), *(["--machine", "FILE"] if self.costs else [])]
        return [*arguments, *option("questions", named(self.dataset_id)), *changed_options(self, *type(self).options())]


class ReplayRequest(Measurement):
    """At most `limit` recorded responses of dataset `dataset_id`; the first `show` are stored as chats."""

    kind: ClassVar[str] = "replay"
    title: ClassVar[str] = "Replay"
    work: ClassVar[str] = "workers.child.work.measure:run_replay"
    output: ClassVar = ("evaluation_id", Evaluation)

    base_id: str
    checkpoint_id: str
    dataset_id: str
    limit: int = setting(50, "Max responses.", 1)
    show: int = setting(3, "Responses to store for the Playground.", 0)
    drafting: dict[str, Any] = {}
    evaluation_id: str = ""

    def default_name(self, session: Session) -> str:
        return f"{super().default_name(session)} on {queries.find_dataset(session, self.dataset_id).name}"

    def columns(self, session: Session) -> dict[str, Any]:
        return {"base_id": self.base_id, "checkpoint_id": self.checkpoint_id or None, "config": self.to_json()}

    def need(self, session: Session) -> Need:
        """Every recorded response once, in speculative steps."""
        data = sizes.require_row(session, Dataset, self.dataset_id)
        rows = sizes.expected_rows(session, data)
        tokens = sizes.answer_tokens(data, rows) * min(self.limit / rows, 1.0) if rows else 0.0
        return self.decoding_need(session, tokens * REPLAY_STEPS_PER_TOKEN)

    def command(self, named: Namer) -> list[str]:
        data, draft = Operand(named(self.dataset_id)), self.model(named)
        arguments = ["replay", "run", data, *option("draft", draft), "--limit", str(self.limit)]
        return [*arguments, *changed_options(self, "show"), *pairs("--set", self.drafting)]


class Tune(Measurement):
    """Measures on the worker's device; the result is stored in the checkpoint's row, with `keep` also in its files."""

    kind: ClassVar[str] = "tune"
    title: ClassVar[str] = "Tune the tree"
    work: ClassVar[str] = "workers.child.work.measure:run_tune"
    rate: ClassVar[Rate] = Rate(share=TUNING_SHARE, unit="bytes_read")

    base_id: str
    checkpoint_id: str
    dataset_id: str = ""
    limit: int = setting(6, LIMIT_HELP, 1)
    max_tokens: int = setting(48, "Max new tokens per response.", 8)
    dtype: str = setting("", DTYPE_HELP, label="Precision")
    keep: bool = setting(True, "Save the tree in the draft if it is faster.")

    def check_options(self) -> None:
        check_sampling((), (), [self.dtype])

    def need(self, session: Session) -> Need:
        """At most a step per token with the widest tree, then forwards of every width."""
        return self.decoding_need(session, self.limit * self.max_tokens + TUNING_STEPS)

    def command(self, named: Namer) -> list[str]:
        arguments = ["tune", Operand(self.model(named)), *option("questions", named(self.dataset_id))]
        return [*arguments, *changed_options(self, *type(self).options())]


def check_sampling(temperatures: Sequence[float], top_ps: Sequence[float], dtypes: Sequence[str]) -> None:
    """Raises BadInput for invalid values."""
    for temperature in temperatures:
        if not 0 <= temperature <= MAX_TEMPERATURE:
            raise BadInput(f"Temperature: expected 0 to {MAX_TEMPERATURE:g}, got {temperature:g}.")
    for top_p in top_ps:
        if not 0 < top_p <= 1:
            raise BadInput(f"Top-p: expected more than 0 and at most 1, got {top_p:g}.")
    for dtype in dtypes:
        if dtype and dtype not in DTYPES:
            raise BadInput(f"Precision {dtype!r}: expected one of {', '.join(DTYPES)}.")


def suite_of(data: Dataset | None) -> str:
    """Name of a question set on the leaderboard; the same for the built-in questions and their dataset."""
    if data is None or built_in_of(data.config) == QUESTIONS:
        return BUILT_IN_SUITE_NAME
    return (data.config or {}).get("suite") or OWN_SUITE_NAME
