"""Forecast of a training's memory from the shape of the base and the settings. No torch.

A process holds the frozen base, the draft in fp32 with gradients and AdamW's two moments, what the backward of a
micro-batch needs (linear in its tokens, as no method keeps scores of attention or logits), and buffers of fixed size.
`python -m benchmarks.training_memory` compares the forecast with measured peaks."""

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from models.methods import METHODS
from models.methods.record import LOSS_CHUNK_FLOATS, BaseShape, DraftSize
from models.methods.settings import TrainConfig

RUNTIME_BYTES = {"cpu": 4.5e8, "cuda": 1.0e9}
"""Libraries of a process on a CPU, or CUDA's context and workspaces on a GPU."""
FRAGMENTATION = {"cpu": 1.0, "cuda": 1.05}
HALF_ACTIVATIONS = 0.6  # size of activations with mixed precision; sums and norms stay in fp32
SHORTEST, SMALLEST = 512, 256  # least max_length and batch_tokens that are proposed
DRAFT_VOCABULARY = 32_000  # proposed draft vocabulary
HOST_BYTES = 2e9  # main memory of a process that trains on a GPU


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes in each process: the base, the draft's weights, gradients and moments, and the peak of a step beside them
    (`runtime` included)."""

    base: float
    draft: float
    step: float

    @property
    def total(self) -> float:
        return self.base + self.draft + self.step


@dataclass(frozen=True)
class Forecast:
    """The memory of a training. `config.batch_tokens` must be set; a batch has more tokens if a single row has, so
    `longest` is the expected length of the longest row. `cached`: bytes of hidden states in main memory."""

    base: BaseShape
    config: TrainConfig
    processes: int = 1
    sharding: str = "none"
    longest: float = math.inf
    cached: float = 0.0
    gpus: int = 1
    """GPUs among which a process divides the base. The draft is on the first."""

    def of_process(self, device: str) -> TrainingMemory:
        """Peak of one process on `device` (cpu or cuda), without cached hidden states."""
        base, config, draft = self.base, self.config, METHODS[self.config.method].size(self.base, self.config)
        size = 4 if base_dtype(config, device) == "float32" else 2
        weights = size * (base.vocabulary_parameters if config.hidden_states else base.parameters)
        if self.gpus > 1:
            weights = weights / self.gpus + weights / max(base.layers, self.gpus)  # up to a layer more
        if size < 4:
            weights += 4 * draft.frozen  # the losses multiply by an LM head in fp32
        step = self._step(draft, device, size) * FRAGMENTATION[device] + RUNTIME_BYTES[device]
        return TrainingMemory(weights, self._draft(draft), step)

    def main_memory(self, device: str) -> float:
        """Bytes of main memory of all processes."""
        return self.cached + self.processes * (self.of_process("cpu").total if device == "cpu" else HOST_BYTES)

    def device_memory(self, device: str) -> float:
        """Bytes of the device's own memory: of each GPU, or main memory."""
        return self.main_memory("cpu") if device == "cpu" else self.of_process(device).total

    def divided(self, limit: float, available: int) -> "Forecast":
        """With the base divided among the fewest of `available` GPUs of `limit` bytes that are enough; the same
        forecast if all are not, or if the base is not loaded."""
        if self.config.hidden_states:
            return self
        forecasts = (replace(self, gpus=count) for count in range(1, available + 1))
        return next((each for each in forecasts if each.device_memory("cuda") <= limit), self)

    def option_that_fits(self, device: str, limit: float) -> str:
        """The first option, else the fewest together, with which the training needs at most `limit` bytes of the
        device, as `name=value, …`; "" if none do."""
        proposals = list(self._proposals(device))
        together = list(accumulate(proposals, operator.or_))
        for changes in (*proposals, *together):
            settings = {name: value for name, value in changes.items() if name != "sharding"}
            sharding = changes.get("sharding", self.sharding)
            changed = replace(self, config=self.config.model_copy(update=settings), sharding=sharding, cached=0.0)
            if changed.device_memory(device) <= limit:
                return _written(changes)
        return ""

    def _draft(self, draft: DraftSize) -> float:
        """fp32 weights and gradients, and AdamW's moments. DDP reduces gradients in buckets, a copy of them; FSDP
        gathers weights and gradients for a micro-batch."""
        states = 16 if self.config.optimizer == "adamw" else 8
        if self.processes == 1:
            return draft.parameters * states
        return draft.parameters * (states / self.processes + 8 if self.sharding == "fsdp" else states + 4)

    def _step(self, draft: DraftSize, device: str, size: int) -> float:
        """Hidden states of all micro-batches, and what is larger: a layer of the base's forward, which ends before, or
        the draft's activations with the loss or a layer's backward."""
        base, config = self.base, self.config
        tokens = max(config.batch_tokens, min(self.longest, config.max_length))
        half = HALF_ACTIVATIONS if config.mixed_precision != "no" else 1.0
        logits = 4 * draft.logits * min(LOSS_CHUNK_FLOATS[device] / tokens, base.vocabulary)
        kept = draft.activations + (draft.norms if device == "cpu" else 0.0)
        activations = half * 4 * kept + max(logits, half * 4 * draft.working)
        forward = size * (2 * base.feedforward_width + base.query_width + 10 * base.hidden)
        hidden_states = size * draft.features * base.hidden * config.accumulate
        return tokens * (hidden_states + max(activations, 0.0 if config.hidden_states else forward))

    def _proposals(self, device: str) -> Iterator[dict[str, Any]]:
        config = self.config
        if base_dtype(config, device) == "float32":
            yield {"base_dtype": "bfloat16"}
        if config.mixed_precision == "no":
            yield {"mixed_precision": "bf16"}
        if not getattr(config, "gradient_checkpointing", True):
            yield {"gradient_checkpointing": True}
        if self.processes > 1 and self.sharding == "none":
            yield {"sharding": "fsdp"}
        batch, length = config.batch_tokens, config.max_length
        while batch > SMALLEST or length > SHORTEST:
            batch, length = max(batch // 2, min(batch, SMALLEST)), max(min(length, batch // 2), min(length, SHORTEST))
            yield {"batch_tokens": batch, "max_length": length}
        if hasattr(config, "draft_vocab_size") and (config.draft_vocab_size or self.base.vocabulary) > DRAFT_VOCABULARY:
            yield {"draft_vocab_size": DRAFT_VOCABULARY}
        if not config.hidden_states:
            yield {"hidden_states": "SERVER"}


def base_dtype(config: TrainConfig, device: str) -> str:
    """The base's precision, as `models.base.training_dtype` chooses it on a GPU with bfloat16; on a CPU float32 unless
    set."""
    if config.base_dtype in ("default", "auto"):
        return "bfloat16" if device == "cuda" else "float32"
    return config.base_dtype


def _written(changes: dict[str, Any]) -> str:
    return ", ".join(f"{name}={str(value).lower() if value is True else value}" for name, value in changes.items())
