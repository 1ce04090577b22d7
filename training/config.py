"""TrainConfig: everything a training run can be told, checked as it is made. No torch here, so pages can build forms.

`SETTINGS` gives for each field its default, a help text and for which methods it counts.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from speculoos.errors import BadInput

METHODS = ("medusa", "eagle", "eagle3", "draft")
CHOICES: dict[str, tuple[str, ...]] = {
    "method": METHODS,
    "schedule": ("cosine", "linear", "constant"),
    "medusa_loss": ("decayed", "sum"),
    "draft_loss": ("ce", "kl", "reverse_kl"),
    "mixed_precision": ("no", "bf16", "fp16"),
    "base_dtype": ("float32", "bfloat16", "float16", "auto"),
    "save_dtype": ("float32", "bfloat16", "float16"),
    "optimizer": ("adamw", "sgd"),
}


@dataclass(frozen=True)
class TrainConfig:
    """One training run. Raises BadInput, naming the field, for a value that cannot be meant."""

    method: str = "medusa"
    # how long
    epochs: float = 2.0
    max_steps: int = 0
    max_minutes: float = 0.0
    patience: int = 0
    # data
    max_length: int = 2048
    batch_tokens: int = 2048
    accumulate: int = 1
    held_out: float = 0.05
    max_held_out: int = 64
    cache_features_mb: int = 1024
    cache_disk_gb: float = 0.0
    # optimizer
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    warmup_ratio: float = 0.05
    schedule: str = "cosine"
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 0.5
    draft_path: str = ""
    seed: int = 0
    # precision and device
    device: str = "auto"
    mixed_precision: str = "no"
    base_dtype: str = "float32"
    save_dtype: str = "float32"
    gradient_checkpointing: bool = False
    # reports and checkpoints
    log_every: int = 1
    eval_every: int = 50
    save_every: int = 50
    keep_last: int = 2
    samples: int = 2
    # Medusa
    medusa_num_heads: int = 4
    medusa_num_layers: int = 1
    medusa_tie_lm_head: bool = False
    medusa_loss: str = "decayed"
    medusa_coefficient: float = 0.2
    medusa_decay: float = 0.8
    # EAGLE-1 and EAGLE-3
    eagle_num_layers: int = 1
    use_input_layernorm_in_first_layer: bool = False
    use_last_layernorm: bool = False
    eagle_feature_weight: float = 1.0
    eagle_token_weight: float = 0.1
    eagle_noise: float = 0.1
    ttt_steps: int = 3
    ttt_decay: float = 0.8
    draft_vocab_size: int = 0
    draft_vocab_coverage: float = 0.0
    norm_before_residual: bool = False
    train_lm_head: bool = True
    aux_layers: tuple[int, ...] = ()
    # standalone draft
    draft_num_layers: int = 4
    draft_loss: str = "kl"

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise BadInput(f"{name}: expected one of {', '.join(choices)}, got {getattr(self, name)!r}.")
        object.__setattr__(self, "aux_layers", tuple(self.aux_layers))
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), field.default)
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise BadInput(f"{name}: expected {_range(low, high)}, got {value}.")
        if self.draft_vocab_size and self.draft_vocab_coverage:
            raise BadInput("draft_vocab_size, draft_vocab_coverage: give one of the two, or neither.")
        if not (self.epochs or self.max_steps or self.max_minutes):
            raise BadInput("epochs: give epochs, max_steps or max_minutes, so that training ends.")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "aux_layers": list(self.aux_layers)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TrainConfig":
        """From stored or typed settings; strings are read as the field's type. Raises BadInput naming the field."""
        known = {f.name: f for f in fields(cls)}
        for name in data:
            if name not in known:
                raise BadInput(f"{name}: no such training setting; known are {', '.join(known)}.")
        return cls(**{name: _read(name, value, known[name].default) for name, value in data.items()})

    @property
    def total_minutes(self) -> float:
        """Minutes allowed, infinite when the clock does not count."""
        return self.max_minutes or math.inf


RANGES: dict[str, tuple[float, float]] = {
    "epochs": (0, 10_000),
    "max_steps": (0, 10**9),
    "max_minutes": (0, 60 * 24 * 365),
    "patience": (0, 10_000),
    "max_length": (8, 1_000_000),
    "batch_tokens": (8, 10**8),
    "accumulate": (1, 100_000),
    "held_out": (0, 0.9),
    "max_held_out": (0, 1_000_000),
    "cache_features_mb": (0, 10**7),
    "cache_disk_gb": (0, 10**6),
    "lr": (1e-12, 10),
    "weight_decay": (0, 10),
    "warmup_ratio": (0, 1),
    "beta1": (0, 1),
    "beta2": (0, 1),
    "clip": (0, 1e9),
    "seed": (0, 2**31 - 1),
    "log_every": (1, 10**9),
    "eval_every": (0, 10**9),
    "save_every": (0, 10**9),
    "keep_last": (1, 10_000),
    "samples": (0, 100),
    "medusa_num_heads": (1, 16),
    "medusa_num_layers": (0, 16),
    "medusa_coefficient": (0, 100),
    "medusa_decay": (0, 10),
    "eagle_num_layers": (1, 16),
    "eagle_feature_weight": (0, 1e6),
    "eagle_token_weight": (0, 1e6),
    "eagle_noise": (0, 10),
    "ttt_steps": (1, 16),
    "ttt_decay": (0, 10),
    "draft_vocab_size": (0, 10**7),
    "draft_vocab_coverage": (0, 1),
    "draft_num_layers": (1, 1000),
}

HELP: dict[str, str] = {
    "method": "Which kind of draft: medusa heads, eagle (EAGLE-1), eagle3 (EAGLE-3), or draft (a small model).",
    "epochs": "Times to go through the data; 0 leaves the end to max_steps or max_minutes.",
    "max_steps": "Stop after this many optimizer steps; 0 for no such limit.",
    "max_minutes": "Stop by the clock after this many minutes of training; 0 for no such limit.",
    "patience": "Stop when this many evaluations in a row brought no better accepted length; 0 never.",
    "max_length": "Longest conversation in tokens; the rest is cut off and counted.",
    "batch_tokens": "Tokens in one batch, padding included.",
    "accumulate": "Batches whose gradients make one optimizer step.",
    "held_out": "Part of the conversations kept for measuring, never trained on.",
    "max_held_out": "Most conversations to keep for measuring.",
    "cache_features_mb": "Memory for keeping the base's hidden states after the first epoch; 0 computes them anew.",
    "cache_disk_gb": "Disk for hidden states that memory has no room for, removed when training ends; 0 for none.",
    "optimizer": "adamw, or plain sgd.",
    "lr": "Highest learning rate.",
    "weight_decay": "AdamW's weight decay.",
    "warmup_ratio": "Part of the run in which the learning rate rises from zero.",
    "schedule": "How the learning rate falls after the warm-up: cosine, linear or constant.",
    "beta1": "AdamW's first moment decay.",
    "beta2": "AdamW's second moment decay.",
    "clip": "Largest gradient norm; larger ones are scaled down. 0 for no limit.",
    "draft_path": "Folder to start from: a checkpoint of this method, or any small model for a standalone draft.",
    "seed": "Number that fixes the held-out split, the data order and all random draws.",
    "device": "auto, cpu, cuda or cuda:N.",
    "mixed_precision": "Precision of the draft's arithmetic: no (fp32), bf16 or, on a GPU, fp16.",
    "base_dtype": "Precision in which the frozen base runs; auto: bfloat16 where the processor or GPU has it.",
    "save_dtype": "Precision of the stored weights.",
    "gradient_checkpointing": "Compute activations twice to save memory.",
    "log_every": "Steps between two points of the charts.",
    "eval_every": "Steps between two measurements on held-out conversations; 0 only at the end.",
    "save_every": "Steps between two resumable states on disk; 0 only when stopped.",
    "keep_last": "How many of the latest resumable states to keep.",
    "samples": "Sample generations to keep at each evaluation.",
    "medusa_num_heads": "Medusa heads: tokens guessed beyond the next one.",
    "medusa_num_layers": "Residual blocks in each head.",
    "medusa_tie_lm_head": "Heads share the base's own output matrix, frozen: small and quick to train.",
    "medusa_loss": "decayed: coefficient · decay^i for head i; sum: plain sum, as the first Medusa release.",
    "medusa_coefficient": "Weight of the first head's loss.",
    "medusa_decay": "Factor between the weights of neighbouring heads.",
    "eagle_num_layers": "Decoder layers of the draft.",
    "use_input_layernorm_in_first_layer": "Normalise the first layer's input.",
    "use_last_layernorm": "Normalise the draft's last feature.",
    "eagle_feature_weight": "Weight of the smooth-L1 loss on features.",
    "eagle_token_weight": "Weight of the soft cross-entropy on tokens.",
    "eagle_noise": "Width of the uniform noise on features, times 512 / length.",
    "ttt_steps": "Training-time test: how many draft steps are unrolled while training.",
    "ttt_decay": "Factor between the weights of neighbouring unrolled steps.",
    "draft_vocab_size": "Tokens the draft can propose, most frequent first; 0 for all.",
    "draft_vocab_coverage": "Choose the draft vocabulary so that it covers this part of the answers; 0 for all tokens.",
    "norm_before_residual": "Take the residual after the hidden norm, as some EAGLE-3 heads do.",
    "train_lm_head": "Train the draft's output matrix too; false: it stays the base's rows, which is quicker.",
    "aux_layers": "Base layers (0-based, outputs) whose hidden states are fused; empty for low, middle and high.",
    "draft_num_layers": "Decoder layers kept from the base.",
    "draft_loss": "ce on the answers, kl (forward) or reverse_kl to the base's probabilities.",
}

ONLY: dict[str, tuple[str, ...]] = {
    **{name: ("medusa",) for name in HELP if name.startswith("medusa_")},
    **{
        name: ("eagle",)
        for name in (
            "eagle_num_layers",
            "use_input_layernorm_in_first_layer",
            "use_last_layernorm",
            "eagle_feature_weight",
            "eagle_token_weight",
            "eagle_noise",
        )
    },
    **{
        name: ("eagle3",)
        for name in (
            "ttt_steps",
            "ttt_decay",
            "norm_before_residual",
            "train_lm_head",
            "aux_layers",
        )
    },
    **{name: ("medusa", "eagle3") for name in ("draft_vocab_size", "draft_vocab_coverage")},
    **{name: ("draft",) for name in ("draft_num_layers", "draft_loss", "gradient_checkpointing")},
}


@dataclass(frozen=True)
class Setting:
    """What a form needs to know of one field. `methods` empty: counts for every method. `choices` empty: free."""

    name: str
    default: Any
    help: str
    methods: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


def _setting(name: str, default: Any) -> Setting:
    low, high = RANGES.get(name, (None, None))
    return Setting(name, default, HELP[name], ONLY.get(name, ()), CHOICES.get(name, ()), low, high)


SETTINGS: dict[str, Setting] = {f.name: _setting(f.name, f.default) for f in fields(TrainConfig)}


def settings_for(method: str) -> list[Setting]:
    """The settings that count for `method`, in the order of TrainConfig."""
    return [s for s in SETTINGS.values() if s.name != "method" and (not s.methods or method in s.methods)]


def _range(low: float, high: float) -> str:
    return f"{low:g} to {high:g}"


def _check_type(name: str, value: Any, default: Any) -> None:
    if isinstance(default, bool):
        good, words = isinstance(value, bool), "true or false"
    elif isinstance(default, int):
        good, words = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    elif isinstance(default, float):
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        words = "a number"
    elif isinstance(default, tuple):
        good, words = all(isinstance(v, int) and not isinstance(v, bool) for v in value), "a list of whole numbers"
    else:
        good, words = isinstance(value, str), "a text"
    if not good:
        raise BadInput(f"{name}: expected {words}, got {value!r}.")


def _read(name: str, value: Any, default: Any) -> Any:
    """Typed forms: "0.001" for a float, "3" or 3.0 for an int, "1,14,26" for a tuple."""
    if isinstance(default, tuple):
        parts = value.replace(",", " ").split() if isinstance(value, str) else list(value or ())
        return tuple(_number(name, part, int) for part in parts)
    if default is MISSING or isinstance(default, str):
        return value
    if isinstance(default, bool):
        words = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
        return words.get(value.strip().lower(), value) if isinstance(value, str) else value
    return _number(name, value, int if isinstance(default, int) else float)


def _number(name: str, value: Any, kind: type) -> Any:
    if isinstance(value, bool):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadInput(f"{name}: expected {'a whole number' if kind is int else 'a number'}, got {value!r}.") from None
    if kind is int and not number.is_integer():
        raise BadInput(f"{name}: expected a whole number, got {value!r}.")
    return kind(number)
