"""Job kind `train`: trains a draft for a base model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from sqlalchemy.orm import Session

from models.methods import METHODS
from models.methods.recipes import config_for
from models.methods.record import BaseShape
from models.methods.settings import FROM_STORE, TrainConfig, max_length_error, setting
from speculoos.errors import BadInput, Conflict, Unsupported
from speculoos.settings import HiddenStatesServer, Settings
from tracking import queries
from tracking.tables import Base, Checkpoint, Dataset, Job, Table
from workers.jobs import sizes
from workers.jobs.arguments import changed_options, option, pairs
from workers.jobs.evaluate import Tune
from workers.jobs.request import Namer, Need, Rate, Request
from workers.jobs.training_memory import Forecast, base_dtype

STEP_OPERATIONS = 1000  # cost of clipping and updating one parameter (memory-bound) as operations
FIXED_OPERATIONS = 2e9
"""Fixed cost of an optimizer step as operations (20 ms at `estimates.OPERATIONS`). Without it and
`sizes.FORWARD_OPERATIONS`, estimates for tiny bases are half of the actual time."""
LONGEST_ROW = 4  # expected length of the longest conversation of a batch, in mean lengths
TUNING_QUESTIONS = 6
"""Questions that a trained draft's tree is tuned with: the last of the built-in set; evaluations use its first."""


class Train(Request):
    """Trains `train_config(method, **settings)` on dataset `dataset_id` and `more_dataset_ids`."""

    kind: ClassVar[str] = "train"
    title: ClassVar[str] = "Train draft"
    output: ClassVar = ("checkpoint_id", Checkpoint)
    output_in_base: ClassVar[bool] = True
    rate: ClassVar[Rate] = Rate(share=1.1, unit="training_flops")

    method: str
    base_id: str
    dataset_id: str
    settings: dict[str, Any] = {}
    recipe: str = setting("", "Recipe with the initial settings: a name or a file.")
    processes: int = setting(1, "Processes that train together, one per GPU; a step takes one batch from each.", 1, 64)
    nodes: int = setting(1, "Machines that train together, each with that many processes; needs rdzv_endpoint.", 1, 64)
    rdzv_endpoint: str = setting(
        "", "host:port of the first machine, whose worker runs the job; `speculoos train-node` joins there."
    )
    sharding: Literal["none", "fsdp"] = setting(
        "none", "none: every process holds the whole draft (DDP). fsdp: each holds a shard of it and its optimizer."
    )
    checkpoint_id: str = ""
    more_dataset_ids: list[str] = []

    @property
    def dataset_ids(self) -> list[str]:
        """All datasets, without duplicates."""
        return list(dict.fromkeys([self.dataset_id, *self.more_dataset_ids]))

    @property
    def all_processes(self) -> int:
        """Processes of all nodes."""
        return self.processes * self.nodes

    @property
    def config(self) -> TrainConfig:
        """All settings: the recipe's, overridden by `settings`. Raises BadInput."""
        return config_for(self.method, self.recipe, self.settings)

    def inputs(self) -> list[tuple[type[Table], str]]:
        return [(Base, self.base_id), *((Dataset, row_id) for row_id in self.dataset_ids)]

    def paths(self) -> list[str]:
        path = self.settings.get("draft_path")
        return [str(path)] if path else []

    def check_options(self) -> None:
        if self.sharding != "none" and self.all_processes == 1:
            raise BadInput(f"Sharding: {self.sharding} needs 2 or more processes, got 1; set processes too.")
        host, _, port = self.rdzv_endpoint.rpartition(":")
        if self.nodes > 1 and not (host and port.isdecimal()):
            raise BadInput(
                f"rdzv_endpoint: {self.nodes} nodes need host:port of the first, got {self.rdzv_endpoint!r}."
            )

    def check_settings(self, settings: Settings) -> None:
        find_server(settings, self.config)

    def check(self, session: Session) -> None:
        base = session.get_one(Base, self.base_id)
        require_method(base, self.method)
        fit_length(self.config, self.settings, base)
        if check := METHODS[self.method].check:
            check(base.card or {}, self.config)
        sets = [session.get_one(Dataset, row_id) for row_id in self.dataset_ids]
        for data in sets:
            if data.kind == "prompts":
                raise BadInput(f"“{data.name}” has prompts only; generate responses first (`speculoos data generate`).")
            if data.state == "ready":
                require_tokenizer(base, data)
        jobs = dict.fromkeys(data.job_id for data in sets if data.state == "pending" and data.job_id)
        if len(jobs) > 1:
            names = ", ".join(f"“{session.get_one(Job, job_id).name}”" for job_id in jobs)
            raise Conflict(
                f"Several of these datasets are still being created ({names}); wait until all but one are ready."
            )

    def default_name(self, session: Session) -> str:
        return f"{self.method}-{queries.find_dataset(session, self.dataset_id).name}"

    def columns(self, session: Session) -> dict[str, Any]:
        base = queries.find_base(session, self.base_id)
        return {
            "method": self.method,
            "config": self.to_json(),
            "base_id": base.id,
            "base_sha256": base.weights_sha256,
            "dataset_id": self.dataset_id,
        }

    def need(self, session: Session) -> Need:
        """The base runs once over cached tokens, in every epoch over others; evaluations read the held-out ones."""
        base = sizes.require_row(session, Base, self.base_id)
        sets = [sizes.require_row(session, Dataset, row_id) for row_id in self.dataset_ids]
        config = fit_length(self.config, self.settings, base)
        # Each step has a batch of every process.
        config = config.model_copy(update={"accumulate": config.accumulate * self.all_processes})
        card = base.card or {}
        vocabulary = card.get("vocabulary") or 0
        if hasattr(config, "draft_vocab_size"):  # at most; a coverage is counted by the training
            vocabulary = min(config.draft_vocab_size or vocabulary, vocabulary)
            config = config.model_copy(update={"draft_vocab_size": vocabulary, "draft_vocab_coverage": 0.0})
        draft = METHODS[config.method].size(BaseShape.from_card(card), config)
        counts = [sizes.expected_rows(session, data) for data in sets]
        read_tokens = (
            min(sizes.total_tokens(session, d, n), n * config.max_length) for d, n in zip(sets, counts, strict=True)
        )
        count, stored = sum(counts), sum(read_tokens)
        config = config.for_tokens(stored)
        tokens = sizes.trained_tokens(config, stored)
        number = 4 if base_dtype(config, "cpu") == "float32" else 2
        features = stored * draft.features * sizes.hidden(base) * number
        in_memory = min(config.cache_features_mb * 2**20, features)
        on_disk = min(config.cache_disk_gb * 1e9, features - in_memory)
        cached = (in_memory + on_disk) / features if features else 0.0
        forwarded = min(stored, tokens) * cached + tokens * (1 - cached)
        remote = bool(config.hidden_states)
        forwards = 0.0 if remote else forwarded * 2 * sizes.parameters(base)
        steps = sizes.steps(config, tokens, stored / max(count, 1))
        held_out = stored * min(config.held_out, config.max_held_out / max(count, 1))
        config = config.for_steps(steps if config.epochs or config.max_steps else 0, held_out / config.step_tokens)
        evaluated = held_out * (1 + (steps // config.eval_every if config.eval_every else 0))
        uses = tokens * 6 * draft.passes_per_step + evaluated * 2 * draft.passes_per_evaluation
        work = (
            forwards + uses * draft.active_parameters + steps * (STEP_OPERATIONS * draft.parameters + FIXED_OPERATIONS)
        )
        states = draft.parameters * 12 * config.keep_last
        memory = Forecast(
            BaseShape.from_card(card),
            config.model_copy(update={"accumulate": self.config.accumulate}),
            self.processes,
            self.sharding,
            LONGEST_ROW * stored / max(count, 1),
            in_memory,
        )
        disk = draft.parameters * 4 + states + on_disk + (features if config.hidden_states_store else 0)
        fixed = 0.0 if remote else Tune(base_id=base.id, checkpoint_id="").need(session).work
        interval = f"evaluated every {config.eval_every:,}" if config.eval_every else "evaluated at the end"
        limits = {"work": work if count else 0.0, "disk": disk, "minutes": config.max_minutes or None}
        limits |= {"memory": memory.main_memory("cpu"), "training_memory": memory}
        return Need(**limits, steps=steps, step_note=f"of {config.step_tokens:,} tokens, {interval}", fixed_bytes=fixed)

    def command(self, named: Namer) -> list[str]:
        arguments = ["train", self.method, *option("model", named(self.base_id))]
        arguments += [argument for row_id in self.dataset_ids for argument in option("data", named(row_id))]
        return [*arguments, *changed_options(self, *type(self).options()), *pairs("--set", self.settings)]


def find_server(settings: Settings, config: TrainConfig) -> HiddenStatesServer | None:
    """The hidden states server of a training, None without one. Raises BadInput for an unknown name."""
    name, configured = config.hidden_states, settings.state_servers
    if name in ("", FROM_STORE):
        return None
    if name not in configured:
        raise BadInput(
            f"hidden_states: there is no server named {name!r} in settings.toml; known are: "
            f"{', '.join(configured) or 'none yet'}.",
            "Add a [hidden_states.NAME] table with its url, then retry.",
        )
    return configured[name]


def require_method(base: Base, method: str) -> None:
    """Raises Unsupported if the card of the base rules out drafts of this method."""
    if reason := ((base.card or {}).get("methods") or {}).get(method):
        raise Unsupported(
            f"{METHODS[method].title} cannot be trained for “{base.name}”: {reason}",
            "Choose another base model; the page of a model lists the methods that it supports.",
        )


def require_tokenizer(base: Base, data: Dataset) -> None:
    """Raises BadInput if the dataset's token ids are from another tokenizer than the base's. Datasets without token
    ids are tokenized again. Files on another machine are checked when the training begins
    (`training.batches.load_conversations`)."""
    folder = Path(data.path)
    try:
        tokenizer_sha256 = json.loads((folder / "dataset.json").read_text(encoding="utf-8")).get("tokenizer_sha256", "")
        with open(min(folder.glob("shard-*.jsonl")), encoding="utf-8") as shard:
            has_ids = bool(json.loads(shard.readline()).get("token_ids"))
    except (OSError, ValueError, AttributeError):
        return
    if has_ids and tokenizer_sha256 and base.tokenizer_sha256 and tokenizer_sha256 != base.tokenizer_sha256:
        raise BadInput(
            f"The dataset “{data.name}” was tokenized with another tokenizer than that of “{base.name}”.",
            "Generate the data with this base model, or train a draft for the base model of the data.",
        )


def fit_length(config: TrainConfig, user_settings: Mapping[str, Any], base: Base) -> TrainConfig:
    """The config with `max_length` limited to the base's positions, if it is from the defaults or a recipe. Raises
    BadInput if `user_settings` has a larger one. Does nothing if the card of the base has no number of positions; the
    training checks the loaded base."""
    longest = (base.card or {}).get("max_length")
    if not longest or config.max_length <= longest:
        return config
    if "max_length" in user_settings:
        raise max_length_error(longest, config.max_length)
    return config.model_copy(update={"max_length": int(longest)})
