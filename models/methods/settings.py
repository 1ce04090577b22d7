"""Validated settings of training runs; each method adds its own (models/methods/*.py). No torch."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticUndefined

from speculoos.errors import BadInput

FROM_STORE = "stored"
"""Value of `hidden_states`: read all hidden states from the store, without running the base."""
STORE_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})?")

# Default batch_tokens: the largest power of two in these bounds that gives at least TARGET_BATCHES batches per epoch.
MAX_BATCH_TOKENS, MIN_BATCH_TOKENS, TARGET_BATCHES = 4096, 256, 32
# Defaults of eval_every and save_every: this many evaluations and saves per run, but fewer evaluations, at least
# MIN_EVALUATIONS, if they would process more than MAX_EVALUATED_PART of the training tokens.
TARGET_EVALUATIONS, TARGET_SAVES = 20, 10
MAX_EVALUATED_PART, MIN_EVALUATIONS = 0.25, 4
MAX_EVAL_INTERVAL, MIN_SAVE_INTERVAL, MAX_SAVE_INTERVAL = 500, 10, 100
TIMED_INTERVAL = 50


def setting(default: Any, help: str, low: float | None = None, high: float | None = None, *, label: str = "") -> Any:
    """A field of TrainConfig: default, help text, minimum, maximum and label."""
    return Field(default, description=help, ge=low, le=high, title=label or None)


def check_store_name(name: str) -> None:
    """Raise BadInput for an invalid name of a hidden states store; "" is valid."""
    if not STORE_NAME.fullmatch(name):
        raise BadInput("hidden_states_store: expected a name of letters, digits, dots and dashes.")


def max_length_error(longest: int, got: int) -> BadInput:
    """The error for a `max_length` of `got` tokens on a base with `longest` positions."""
    return BadInput(
        f"max_length: this base takes at most {longest} tokens, got {got}.",
        f"Set max_length to {longest} or less; longer conversations are truncated and counted.",
    )


class TrainConfig(BaseModel):
    """Settings of a training run of one method. Create with `methods.train_config`, which raises BadInput."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)  # a validator is built by its first use

    method: str
    # length
    epochs: float = setting(2.0, "Passes over the data; 0: until max_steps or max_minutes.", 0, 1e4, label="Epochs")
    max_steps: int = setting(0, "Stop after this many optimizer steps; 0: no limit.", 0, 10**9, label="Max steps")
    max_minutes: float = setting(
        0.0, "Stop after this many minutes; 0: no limit.", 0, 60 * 24 * 365, label="Time limit (minutes)"
    )
    patience: int = setting(
        0,
        "Stop after this many evaluations without a better mean accepted length; 0: never.",
        0,
        10_000,
        label="Patience",
    )
    # data
    max_length: int = setting(
        2048, "Max tokens per conversation; longer ones are truncated and counted.", 8, 10**6, label="Max length"
    )
    batch_tokens: int | None = setting(
        None, "Tokens per batch, including padding; empty: by the size of the data.", 8, 10**8, label="Tokens per batch"
    )
    accumulate: int = setting(1, "Batches per optimizer step.", 1, 100_000, label="Gradient accumulation")
    held_out: float = setting(
        0.05, "Fraction of the conversations held out for evaluation.", 0, 0.9, label="Held-out fraction"
    )
    max_held_out: int = setting(64, "Max held-out conversations.", 0, 10**6, label="Max held-out conversations")
    cache_features_mb: int = setting(
        1024, "Memory for caching hidden states; 0: recompute them.", 0, 10**7, label="Memory for hidden states (MB)"
    )
    cache_disk_gb: float = setting(
        0.0, "Disk for hidden states that do not fit in memory.", 0, 10**6, label="Disk for hidden states (GB)"
    )
    # hidden states
    hidden_states: str = setting(
        "", "Server that runs the base (settings.toml), or stored: store only.", label="Hidden states server"
    )
    hidden_states_ahead: int = setting(
        2, "Batches requested from that server in advance.", 0, 64, label="Prefetched batches"
    )
    hidden_states_store: str = setting(
        "", "Name of a folder that stores hidden states across runs.", label="Hidden states store"
    )
    # optimizer
    optimizer: Literal["adamw", "sgd"] = setting("adamw", "adamw, or plain sgd.")
    lr: float = setting(1e-3, "Peak learning rate.", 1e-12, 10, label="Learning rate")
    weight_decay: float = setting(0.0, "AdamW's weight decay.", 0, 10)
    warmup_ratio: float = setting(
        0.05, "Fraction of the run in which the learning rate rises from zero.", 0, 1, label="Warm-up"
    )
    schedule: Literal["cosine", "linear", "constant"] = setting(
        "cosine", "How the learning rate falls after the warm-up: cosine, linear or constant."
    )
    beta1: float = setting(0.9, "AdamW's first moment decay.", 0, 1, label="Beta 1")
    beta2: float = setting(0.95, "AdamW's second moment decay.", 0, 1, label="Beta 2")
    clip: float = setting(
        0.5, "Max gradient norm; larger ones are scaled down; 0: no limit.", 0, 1e9, label="Max gradient norm"
    )
    draft_path: str = setting(
        "",
        "Folder to start from: a draft, whose sizes and vocabulary stay, or any small model for a standalone draft.",
        label="Start from",
    )
    seed: int = setting(0, "Random seed of the held-out split, the data order and all sampling.", 0, 2**31 - 1)
    # precision and device
    device: str = setting(
        "auto", "auto, cpu, cuda or cuda:N; auto and cuda divide a base larger than a GPU among several."
    )
    mixed_precision: Literal["no", "bf16", "fp16"] = setting(
        "no", "Precision of the draft's arithmetic: no (fp32), bf16 or, on a GPU, fp16.", label="Draft precision"
    )
    base_dtype: Literal["default", "float32", "bfloat16", "float16", "auto"] = setting(
        "default",
        "Precision of the base; default: bfloat16 on a GPU that has it, else float32; auto: bfloat16 on CPUs too.",
        label="Base precision",
    )
    save_dtype: Literal["float32", "bfloat16", "float16"] = setting(
        "float32", "Precision of the stored weights.", label="Weights precision"
    )
    # reports and checkpoints
    log_every: int = setting(1, "Steps between points in the charts.", 1, 10**9, label="Logging interval")
    eval_every: int | None = setting(
        None, "Steps between evaluations; 0: only at the end.", 0, 10**9, label="Evaluation interval"
    )
    save_every: int | None = setting(
        None, "Steps between saves; 0: only when stopped.", 0, 10**9, label="Save interval"
    )
    keep_last: int = setting(2, "Number of the latest resumable states to keep.", 1, 10_000, label="Saves to keep")
    samples: int = setting(2, "Sample generations to keep at each evaluation.", 0, 100)

    @field_validator("*", mode="before")
    @classmethod
    def _as_written(cls, value: Any, info: ValidationInfo) -> Any:
        """Accept lists as `1, 14, 26` and "" for optional numbers; reject booleans for numbers."""
        kind = cls.model_fields[info.field_name].annotation
        if kind == (int | None) and value == "":
            return None
        if get_origin(kind) is tuple and isinstance(value, str):
            return value.replace(",", " ").split()
        if isinstance(value, bool) and kind is not bool:
            raise ValueError("true and false are not numbers")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "TrainConfig":
        if not (self.epochs or self.max_steps or self.max_minutes):
            raise BadInput("epochs: set epochs, max_steps or max_minutes, so that training ends.")
        check_store_name(self.hidden_states_store)
        if self.hidden_states == FROM_STORE and not self.hidden_states_store:
            raise BadInput("hidden_states: “stored” needs the name of a store, hidden_states_store.")
        return self

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def for_tokens(self, tokens: float) -> "TrainConfig":
        """With the default `batch_tokens` for this many tokens of data, if it is not set: less data gives smaller
        batches, so that there are enough steps."""
        if self.batch_tokens is not None:
            return self
        fitting = 1 << max(int(tokens / TARGET_BATCHES).bit_length() - 1, 0)
        return self.model_copy(update={"batch_tokens": min(max(fitting, MIN_BATCH_TOKENS), MAX_BATCH_TOKENS)})

    def for_steps(self, steps: int, held: float = 0.0) -> "TrainConfig":
        """With the defaults of `eval_every` and `save_every` for this many steps (0: unknown), if they are not set.
        `held`: tokens of an evaluation, in units of a step's tokens."""
        interval = min(max(steps // TARGET_EVALUATIONS, 1), MAX_EVAL_INTERVAL) if steps else TIMED_INTERVAL
        interval = max(interval, min(math.ceil(held / MAX_EVALUATED_PART), steps // MIN_EVALUATIONS))
        save = min(max(steps // TARGET_SAVES, MIN_SAVE_INTERVAL), MAX_SAVE_INTERVAL) if steps else TIMED_INTERVAL
        defaults = {"eval_every": interval, "save_every": save}
        return self.model_copy(update={name: n for name, n in defaults.items() if getattr(self, name) is None})

    @property
    def step_tokens(self) -> int:
        return self.batch_tokens * self.accumulate

    @property
    def total_minutes(self) -> float:
        return self.max_minutes or math.inf


class DraftVocabularyConfig(TrainConfig):
    """Settings of methods that support a draft vocabulary."""

    draft_vocab_size: int = setting(
        0, "Tokens the draft can propose, most frequent first; 0: all.", 0, 10**7, label="Draft vocabulary"
    )
    draft_vocab_coverage: float = setting(
        0.0, "Share of the response tokens to cover; 0: all.", 0, 1, label="Draft vocabulary coverage"
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> "DraftVocabularyConfig":
        if self.draft_vocab_size and self.draft_vocab_coverage:
            raise BadInput("draft_vocab_size, draft_vocab_coverage: set only one of the two.")
        return self


def check_inputs(card: Mapping[str, Any], config: Any) -> None:
    """Raise BadInput for fused layers or a mask token that the base with this card lacks."""
    layers, tokens = card.get("layers") or 0, card.get("vocabulary") or 0
    if layers and (invalid := [i for i in config.aux_layers if not 0 <= i < layers]):
        raise BadInput(f"aux_layers: this base has layers 0 to {layers - 1}, got {invalid[0]}.")
    mask_token = getattr(config, "mask_token_id", None)
    if tokens and mask_token is not None and mask_token >= tokens:
        raise BadInput(f"mask_token_id: this base has {tokens} tokens, got {mask_token}.")


AUX_LAYERS = setting((), "Fused base layers (0-based, outputs); empty: spread from low to high.", label="Fused layers")
DPACE_ALPHA = setting(0.5, "Smoothing of dpace; 1: the confidence has no effect.", 0.01, 1, label="Smoothing of D-PACE")
MASK_TOKEN_ID = setting(
    None, "Input token at the positions of draft tokens; empty: an unused or special one.", 0, 10**7, label="Mask token"
)


@dataclass(frozen=True)
class Setting:
    """Description of a field for forms. `methods` empty: for every method; `choices` empty: any value."""

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
        if self.choices:
            return "one of " + ", ".join(self.choices)
        return TYPE_DESCRIPTIONS.get(self.kind, "a text") + (", or nothing" if self.is_open else "")

    @property
    def required(self) -> bool:
        return self.default is PydanticUndefined

    @property
    def is_open(self) -> bool:
        """Whether the default is computed from the data or the number of steps."""
        return self.default is None

    def contains(self, value: Any) -> bool:
        """Whether a number is within the bounds; True for other values."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    @property
    def range(self) -> str:
        return f"{self.low:.10g} to {self.high:.10g}" if self.high is not None else f"{self.low:.10g} or more"


TYPE_DESCRIPTIONS = {bool: "true or false", int: "a whole number", float: "a number", tuple: "a list of whole numbers"}


def settings_of(config: type[BaseModel], methods: tuple[str, ...] = ()) -> list[Setting]:
    """All settings of a config class except `method`, common ones first."""
    return [_setting(name, field, methods) for name, field in config.model_fields.items() if name != "method"]


def settings_error(
    error: ValidationError, config: type[BaseModel], owner: str = "", *, by_label: bool = False
) -> BadInput:
    """The first of pydantic's errors as a sentence. `owner`: the start of a message about an unknown field; `by_label`:
    name fields by their labels."""
    problem = error.errors()[0]
    name = str(problem["loc"][0])
    if name not in config.model_fields:
        known = ", ".join(field for field in config.model_fields if field != "method")
        return BadInput(f"{owner or f'{name}: '}unknown field {name!r}; known are {known}.")
    setting = _setting(name, config.model_fields[name], ())
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
