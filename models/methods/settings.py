"""What every training run can be told, checked as it is made; each method adds its own settings (models/methods/*.py).

Default, range, choices and help text of a setting stand on one line. No torch here, so pages can build forms.
"""

import math
import re
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticUndefined

from speculoos.errors import BadInput

STORED = "stored"
"""As `hidden_states`: nothing runs the base, all hidden states are in the store."""
STORE_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})?")


MOST_BATCH_TOKENS, LEAST_BATCH_TOKENS, BATCHES = 4096, 256, 32
"""A batch where nobody says: the largest power of two in these bounds that leaves so many batches an epoch."""
MEASUREMENTS, SAVES = 20, 10
"""How often a run is measured and saved where nobody says …"""
MEASURED, LEAST_MEASUREMENTS = 0.25, 4
"""… fewer times where measurements would run over more than this part of the tokens that are learned from, yet so many
at least …"""
MOST_BETWEEN, LEAST_SAVE, MOST_SAVE = 500, 10, 100
"""… with no more steps between two measurements than the first, nor two saves outside of the others."""
BY_THE_CLOCK = 50
"""Steps between both where only the clock says when a run ends."""


def setting(default: Any, help: str, low: float | None = None, high: float | None = None, *, label: str = "") -> Any:
    """A field of TrainConfig: its default, what it does, the least and the most it can be, what people call it."""
    return Field(default, description=help, ge=low, le=high, title=label or None)


def check_store_name(name: str) -> None:
    """Raise BadInput for what cannot be a folder of hidden states; "" is none."""
    if not STORE_NAME.fullmatch(name):
        raise BadInput("hidden_states_store: expected a name of letters, digits, dots and dashes.")


def too_long(longest: int, got: int) -> BadInput:
    """The error for a `max_length` of `got` tokens on a base of `longest` positions."""
    return BadInput(
        f"max_length: this base takes at most {longest} tokens, got {got}.",
        f"Set max_length to {longest} or less; longer conversations are cut there, and counted.",
    )


class TrainConfig(BaseModel):
    """One training run of one method. `methods.train_config` makes one and says in a sentence what is wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str
    # how long
    epochs: float = setting(
        2.0, "Times to go through the data; 0 leaves the end to max_steps or max_minutes.", 0, 1e4, label="Epochs"
    )
    max_steps: int = setting(
        0, "Stop after this many optimizer steps; 0 for no such limit.", 0, 10**9, label="Steps at most"
    )
    max_minutes: float = setting(
        0.0,
        "Stop by the clock after this many minutes of training; 0 for no such limit.",
        0,
        60 * 24 * 365,
        label="Minutes at most",
    )
    patience: int = setting(
        0,
        "Stop when this many evaluations in a row brought no better accepted length; 0 never.",
        0,
        10_000,
        label="Patience",
    )
    # data
    max_length: int = setting(
        2048, "Longest conversation in tokens; the rest is cut off and counted.", 8, 10**6, label="Longest conversation"
    )
    batch_tokens: int | None = setting(
        None, "Tokens in one batch, padding included; empty: by the data.", 8, 10**8, label="Tokens a batch"
    )
    accumulate: int = setting(1, "Batches whose gradients make one optimizer step.", 1, 100_000, label="Batches a step")
    held_out: float = setting(
        0.05, "Part of the conversations kept for measuring, never trained on.", 0, 0.9, label="Part held out"
    )
    max_held_out: int = setting(64, "Most conversations to keep for measuring.", 0, 10**6, label="Held out at most")
    cache_features_mb: int = setting(
        1024,
        "Memory for keeping the base's hidden states after the first epoch; 0 computes them anew.",
        0,
        10**7,
        label="Memory for hidden states, MB",
    )
    cache_disk_gb: float = setting(
        0.0,
        "Disk for hidden states that memory has no room for, removed when training ends; 0 for none.",
        0,
        10**6,
        label="Disk for hidden states, GB",
    )
    # hidden states
    hidden_states: str = setting(
        "",
        "Server that runs the base, by its name in settings.toml; stored: the store alone; empty: run it here.",
        label="Server of hidden states",
    )
    hidden_states_ahead: int = setting(
        2, "Batches asked of that server before they are needed.", 0, 64, label="Batches asked ahead"
    )
    hidden_states_store: str = setting(
        "",
        "Name of a folder that keeps hidden states from run to run, a file for each conversation; empty for none.",
        label="Store of hidden states",
    )
    # optimizer
    optimizer: Literal["adamw", "sgd"] = setting("adamw", "adamw, or plain sgd.")
    lr: float = setting(1e-3, "Highest learning rate.", 1e-12, 10, label="Learning rate")
    weight_decay: float = setting(0.0, "AdamW's weight decay.", 0, 10)
    warmup_ratio: float = setting(
        0.05, "Part of the run in which the learning rate rises from zero.", 0, 1, label="Warm-up"
    )
    schedule: Literal["cosine", "linear", "constant"] = setting(
        "cosine", "How the learning rate falls after the warm-up: cosine, linear or constant."
    )
    beta1: float = setting(0.9, "AdamW's first moment decay.", 0, 1, label="Beta 1")
    beta2: float = setting(0.95, "AdamW's second moment decay.", 0, 1, label="Beta 2")
    clip: float = setting(
        0.5, "Largest gradient norm; larger ones are scaled down. 0 for no limit.", 0, 1e9, label="Largest gradient"
    )
    draft_path: str = setting(
        "",
        "Folder to start from: a checkpoint of this method, or any small model for a standalone draft.",
        label="Start from",
    )
    seed: int = setting(0, "Number that fixes the held-out split, the data order and all random draws.", 0, 2**31 - 1)
    # precision and device
    device: str = setting("auto", "auto, cpu, cuda or cuda:N.")
    mixed_precision: Literal["no", "bf16", "fp16"] = setting(
        "no", "Precision of the draft's arithmetic: no (fp32), bf16 or, on a GPU, fp16.", label="Precision of the draft"
    )
    base_dtype: Literal["float32", "bfloat16", "float16", "auto"] = setting(
        "float32",
        "Precision in which the frozen base runs; auto: bfloat16 where the processor or GPU has it.",
        label="Precision of the base",
    )
    save_dtype: Literal["float32", "bfloat16", "float16"] = setting(
        "float32", "Precision of the stored weights.", label="Precision of the files"
    )
    # reports and checkpoints
    log_every: int = setting(1, "Steps between two points of the charts.", 1, 10**9, label="Steps between points")
    eval_every: int | None = setting(
        None,
        "Steps between two measurements on held-out conversations; 0 only at the end, empty: by the length.",
        0,
        10**9,
        label="Steps between measurements",
    )
    save_every: int | None = setting(
        None,
        "Steps between two resumable states on disk; 0 only when stopped, empty: by the length.",
        0,
        10**9,
        label="Steps between saves",
    )
    keep_last: int = setting(2, "How many of the latest resumable states to keep.", 1, 10_000, label="Saves to keep")
    samples: int = setting(2, "Sample generations to keep at each evaluation.", 0, 100)

    @field_validator("*", mode="before")
    @classmethod
    def _as_written(cls, value: Any, info: ValidationInfo) -> Any:
        """A list may be typed as `1, 14, 26`; true is no number; nothing typed leaves a number to the workbench."""
        kind = cls.model_fields[info.field_name].annotation
        if kind == (int | None) and value == "":
            return None
        if get_origin(kind) is tuple and isinstance(value, str):
            return value.replace(",", " ").split()
        if isinstance(value, bool) and kind is not bool:
            raise ValueError("true and false are no numbers")
        return value

    @model_validator(mode="after")
    def _ends(self) -> "TrainConfig":
        if not (self.epochs or self.max_steps or self.max_minutes):
            raise BadInput("epochs: give epochs, max_steps or max_minutes, so that training ends.")
        return self

    @model_validator(mode="after")
    def _states(self) -> "TrainConfig":
        check_store_name(self.hidden_states_store)
        if self.hidden_states == STORED and not self.hidden_states_store:
            raise BadInput("hidden_states: “stored” needs the name of a store, hidden_states_store.")
        return self

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def for_tokens(self, tokens: float) -> "TrainConfig":
        """With the batch that so many tokens of data call for, where none was given: few data make small batches, so
        that there are steps to learn in."""
        if self.batch_tokens is not None:
            return self
        fitting = 1 << max(int(tokens / BATCHES).bit_length() - 1, 0)
        return self.model_copy(update={"batch_tokens": min(max(fitting, LEAST_BATCH_TOKENS), MOST_BATCH_TOKENS)})

    def for_steps(self, steps: int, held: float = 0.0) -> "TrainConfig":
        """With measurements and saves spread over so many steps (0: only the clock ends it), where none were given.
        `held`: tokens that a measurement runs over, in batches of a step."""
        often = min(max(steps // MEASUREMENTS, 1), MOST_BETWEEN) if steps else BY_THE_CLOCK
        often = max(often, min(math.ceil(held / MEASURED), steps // LEAST_MEASUREMENTS))
        save = min(max(steps // SAVES, LEAST_SAVE), MOST_SAVE) if steps else BY_THE_CLOCK
        found = {"eval_every": often, "save_every": save}
        return self.model_copy(update={name: n for name, n in found.items() if getattr(self, name) is None})

    @property
    def step_tokens(self) -> int:
        """Tokens of an optimizer step."""
        return self.batch_tokens * self.accumulate

    @property
    def total_minutes(self) -> float:
        """Minutes allowed, infinite when the clock does not count."""
        return self.max_minutes or math.inf


class DraftVocabularyConfig(TrainConfig):
    """Settings of methods whose draft may know only a part of the base's tokens."""

    draft_vocab_size: int = setting(
        0, "Tokens the draft can propose, most frequent first; 0 for all.", 0, 10**7, label="Draft vocabulary"
    )
    draft_vocab_coverage: float = setting(
        0.0,
        "Choose the draft vocabulary so that it covers this part of the answers; 0 for all tokens.",
        0,
        1,
        label="Draft vocabulary by coverage",
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> "DraftVocabularyConfig":
        if self.draft_vocab_size and self.draft_vocab_coverage:
            raise BadInput("draft_vocab_size, draft_vocab_coverage: give one of the two, or neither.")
        return self


@dataclass(frozen=True)
class Setting:
    """What a form needs to know of one field, which people call `label`. `methods` empty: counts for every method.
    `choices` empty: free."""

    name: str
    default: Any
    help: str
    methods: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    label: str = ""
    kind: type = str

    @property
    def expected(self) -> str:
        """What a value has to be, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        return WORDS.get(self.kind, "a text") + (", or nothing" if self.is_open else "")

    @property
    def required(self) -> bool:
        return self.default is PydanticUndefined

    @property
    def is_open(self) -> bool:
        """A number that the workbench chooses where nobody says one."""
        return self.default is None

    @property
    def range(self) -> str:
        return f"{self.low:.10g} to {self.high:.10g}" if self.high is not None else f"{self.low:.10g} or more"


WORDS = {bool: "true or false", int: "a whole number", float: "a number", tuple: "a list of whole numbers"}


def settings_of(config: type[BaseModel], methods: tuple[str, ...] = ()) -> list[Setting]:
    """The settings of a method's class, `method` itself left out, those of every method first."""
    return [_setting(name, field, methods) for name, field in config.model_fields.items() if name != "method"]


def first_problem(
    error: ValidationError, config: type[BaseModel], owner: str = "", *, by_label: bool = False
) -> BadInput:
    """pydantic's errors as one sentence about the first wrong field, by its name or its label; `owner` begins a
    sentence about an unknown field."""
    problem = error.errors()[0]
    name = str(problem["loc"][0])
    known = {setting.name: setting for setting in settings_of(config)}
    if name not in known:
        return BadInput(f"{owner or f'{name}: '}unknown field {name!r}; known are {', '.join(known)}.")
    setting = known[name]
    shown = setting.label if by_label else name
    if problem["type"] == "missing":
        return BadInput(f"{shown}: a value is missing.")
    outside = problem["type"] in ("greater_than_equal", "less_than_equal", "finite_number")
    expected = setting.range if outside and setting.low is not None else setting.expected
    return BadInput(f"{shown}: expected {expected}, got {problem['input']!r}.")


def _setting(name: str, field: Any, methods: tuple[str, ...]) -> Setting:
    limits = {key: getattr(part, key) for part in field.metadata for key in ("ge", "le") if hasattr(part, key)}
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    own = () if name in TrainConfig.model_fields else methods
    label = field.title or name.replace("_", " ").capitalize()
    low, high = limits.get("ge"), limits.get("le")
    default = field.get_default(call_default_factory=True)
    return Setting(name, default, field.description or "", own, choices, low, high, label, _kind(field.annotation))


def _kind(annotation: Any) -> type:
    """bool, int, float, str, tuple or dict, of an annotation such as `int | None`."""
    if get_origin(annotation) is Literal:
        return str
    if get_origin(annotation) is UnionType:
        return _kind(next(part for part in get_args(annotation) if part is not NoneType))
    kind = get_origin(annotation) or annotation
    return tuple if kind is list else kind
