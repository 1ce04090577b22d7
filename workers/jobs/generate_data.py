"""Job kind `generate_data`: a base model or an endpoint generates responses to a prompt set."""

from typing import Any, ClassVar, Literal

from pydantic import field_validator
from sqlalchemy.orm import Session

from models.methods.settings import check_store_name, setting
from speculoos.errors import BadInput, Unsupported
from speculoos.settings import Settings
from tracking import queries
from tracking.tables import Base, Dataset, Table
from workers.jobs import sizes
from workers.jobs.arguments import changed_options, option, parse_numbers
from workers.jobs.request import Namer, Need, Rate, Request

SHARD_ROWS = 5000  # default number of prompts per shard; smaller generations are one job


class GenerateData(Request):
    """Responses to the prompts of `source_id` by base `base_id`, or by the endpoint `endpoint` (several: `a,b`). With
    both, the endpoint serves that base, and its token ids are requested and checked."""

    kind: ClassVar[str] = "generate_data"
    title: ClassVar[str] = "Generate responses"
    retired: ClassVar[tuple[str, ...]] = ("unique",)
    output: ClassVar = ("dataset_id", Dataset)
    rate: ClassVar[Rate] = Rate(share=0.6)

    source_id: str
    base_id: str = ""
    endpoint: str = setting("", "Endpoint of settings.toml that generates instead of a local model; several: a,b.")
    endpoint_model: str = setting(
        "", "Model name to request from that endpoint; empty: the one in settings.toml.", label="Model at the endpoint"
    )
    limit: int | None = setting(None, "Use only the first prompts; empty: all.", 1, label="Max prompts")
    system_prompt: str = setting("", "System prompt put before each conversation.", label="System prompt (optional)")
    max_tokens: int = setting(
        256, "Max tokens per response; longer ones are truncated.", 1, 100_000, label="Max tokens per response"
    )
    temperature: float = setting(0.0, "0 is greedy: always the most likely token.", 0, 5)
    top_p: float = setting(
        1.0, "Sample from the most likely tokens with this total probability.", 0.01, 1, label="Top-p"
    )
    batch_size: int = setting(16, "Responses generated at once; more is faster and needs more memory.", 1, 4096)
    seed: int = setting(0, "Seed of sampling.")
    max_minutes: float | None = setting(
        None, "Stop after this time and keep the finished responses.", 0, 10**6, label="Time limit (minutes)"
    )
    samples: int = setting(
        1, "Responses per prompt; more than one needs a temperature.", 1, 1000, label="Responses per prompt"
    )
    shard_rows: int | None = setting(
        None, f"Larger generations are divided into shards. Default: {SHARD_ROWS}.", 1, label="Prompts per shard"
    )
    temperatures: tuple[float, ...] = setting(
        (), "Spread prompts and samples over these, such as 0.0,0.3,0.7.", label="Several temperatures"
    )
    replace_system: bool = setting(
        False,
        "Replace the prompts' own system prompts by the system prompt above, or by none.",
        label="Replace the prompts' own system prompts",
    )
    api: Literal["chat", "completions"] = setting(
        "chat", "chat, or completions with the base's chat template, applied here.", label="API of the endpoint"
    )
    drop_cut: bool = setting(
        False, "Skip responses that were truncated at the token limit.", label="Skip truncated responses"
    )
    hidden_states_store: str = setting(
        "", "Name of a store for hidden states, which trainings of Medusa heads read.", label="Hidden states store"
    )
    dataset_id: str = ""

    @field_validator("temperatures", mode="before")
    @classmethod
    def _parse_temperatures(cls, value: Any) -> Any:
        return parse_numbers("Several temperatures", value) if isinstance(value, str) else value

    def inputs(self) -> list[tuple[type[Table], str]]:
        return [(Dataset, self.source_id)] + ([(Base, self.base_id)] if self.base_id else [])

    def check_settings(self, settings: Settings) -> None:
        check_store_name(self.hidden_states_store)
        if self.hidden_states_store and self.endpoint:
            raise BadInput("hidden_states_store: endpoints return no hidden states; use a local model.")

    def check(self, session: Session) -> None:
        """Raises Unsupported for a system prompt if it is rendered here and the base has no chat template."""
        base = session.get_one(Base, self.base_id) if self.base_id else None
        rendered_here = not self.endpoint or self.api == "completions"
        if base and self.system_prompt and rendered_here and (base.card or {}).get("chat_template") is False:
            raise Unsupported(
                f"“{base.name}” has no chat template, so it cannot take a system prompt.",
                "Leave the system prompt out, or choose an instruct model.",
            )

    def check_options(self) -> None:
        if not (self.endpoint or self.base_id):
            raise BadInput("Choose the model that generates the responses: a base model, or an endpoint.")
        if self.temperatures and self.temperature:
            raise BadInput("Set one temperature or several, not both.")
        if not all(0 <= temperature <= 5 for temperature in self.temperatures):
            raise BadInput("Several temperatures: expected numbers from 0 to 5.")
        if self.samples > 1 and self._repeats_greedy():
            raise BadInput("Several responses per prompt need temperatures above 0; at 0 they would be the same.")
        if self.api == "completions" and not (self.endpoint and self.base_id):
            raise BadInput(
                "Plain completions need an endpoint and the base model that it serves, for its chat template."
            )
        if self.shard_rows and self.max_minutes:
            raise BadInput("A generation with a time limit is one job; leave out the limit or the prompts per shard.")

    def _repeats_greedy(self) -> bool:
        """Whether several responses to a prompt would be generated at temperature 0."""
        temperatures = self.temperatures or (self.temperature,)
        greedy = sum(temperature <= 0 for temperature in temperatures)
        return greedy > 1 or (greedy == 1 and self.samples > len(temperatures))

    def default_name(self, session: Session) -> str:
        by = self.endpoint or queries.find_base(session, self.base_id).name
        return f"{queries.find_dataset(session, self.source_id).name} by {by}"

    def columns(self, session: Session) -> dict[str, Any]:
        return {
            "kind": "conversations",
            "config": self.to_json(),
            "source_id": self.source_id,
            "base_id": self.base_id or None,
        }

    def need(self, session: Session) -> Need:
        source = sizes.require_row(session, Dataset, self.source_id)
        expected = sizes.expected_rows(session, source)
        count = min(expected, self.limit or expected) * sizes.turns(source) * self.samples
        tokens, prompt_tokens = count * self.max_tokens, sizes.prompt_tokens(source)
        disk = count * (self.max_tokens + prompt_tokens) * sizes.BYTES_PER_TOKEN
        if self.endpoint:
            return Need(work=tokens, disk=disk, minutes=self.max_minutes)
        base = sizes.require_row(session, Base, self.base_id)
        length = prompt_tokens + self.max_tokens
        memory = sizes.weights_bytes(base) * 1.2 + self.batch_size * length * sizes.cache_bytes(base)
        forward = 2 * sizes.parameters(base) + sizes.FORWARD_OPERATIONS / self.batch_size
        work = (tokens + count * prompt_tokens) * (forward if sizes.parameters(base) else 0.0)
        return Need(work=work, disk=disk, memory=memory + 4e8, minutes=self.max_minutes)

    def command(self, named: Namer) -> list[str]:
        arguments = [
            "data",
            "generate",
            *option("prompts", named(self.source_id)),
            *option("model", named(self.base_id)),
        ]
        return [*arguments, *changed_options(self, *type(self).options())]


class GenerateShard(GenerateData):
    """Shard `key` of a generation: sample `first_sample` of `limit` prompts from index `first` on."""

    kind: ClassVar[str] = "generate_shard"
    title: ClassVar[str] = "Generate a shard"
    output: ClassVar = None
    work: ClassVar[str] = "workers.child.work.generate_data"

    key: str = ""
    first: int = 0
    first_sample: int = 0
