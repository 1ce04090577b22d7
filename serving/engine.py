"""One generation from request to summary, on the device's thread. Independent of HTTP."""

import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from serving.baseline import Conditions, PlainBaselines
from serving.catalog import ModelRef
from serving.errors import ApiError
from serving.metrics import InferenceMetrics
from serving.pool import ModelPool, PooledModel, default_budget
from serving.prompts import Prompts
from serving.protocol import GenerationRequest
from serving.queueing import UPKEEP, DeviceQueue
from speculoos.checksums import ChecksumCache
from speculoos.cpu_load import OtherCpuLoad
from speculoos.errors import BadInput, SpeculoosError, Unavailable, Unsupported
from speculoos.faults import out_of_memory
from speculoos.limited import START_SECONDS
from speculoos.settings import Settings
from tracking import leases

log = logging.getLogger(__name__)
PRELOADED = (
    "models.checkpoints",
    "decoding.drafters",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
    "transformers.generation.utils",
)
"""Modules imported at startup, so that the first request does not wait for them. Model code of the starter's family
(Llama) only; other families are imported when loaded."""
IDLE_SECONDS = 30.0
SLOWEST_FLOPS = 2e9  # lowest speed of a forward in FLOPS; a slower device counts as stuck
STEP_ROWS = 256
ACCEPTANCE_OPTIONS = ("acceptance", "epsilon", "alpha")
"""Options of `speculation` for accepting drafts; all others except PROBABILITIES are options of the drafter."""
PROBABILITIES = "probabilities"
"""Option of `speculation` that records the base model's probability of each draft token in the trace."""
LOSSY = "Typical acceptance is lossy: the response may differ from plain decoding."
EXACT_GREEDY = "Typical acceptance needs a temperature above 0; at 0 the response is the same as with exact acceptance."
RECORDED = "The model's probabilities were recorded too, which takes time: speeds are lower than without."
NO_DRAFT = "Speculation is off: the base model generates every token; choose a draft or prompt lookup."


@dataclass(frozen=True)
class GenerationResult:
    """Result of a generation. `summary` is JSON."""

    text: str
    token_ids: list[int]
    summary: dict[str, Any]


class Engine:
    """A device with its queue and its loaded models. `budget`: their bytes. `queue_limits`: `max_per_client` and
    `max_waiting` of a DeviceQueue."""

    def __init__(self, settings: Settings, dtype: str = "", budget: int | None = None, **queue_limits: int):
        import torch

        from models.base import decoding_dtype, lease_name, pick_device

        self._threads = torch.get_num_threads()
        self.settings = settings
        device = pick_device(settings.device)
        self.device, self.lease_name = str(device), lease_name(device)
        self.dtype = dtype or decoding_dtype(settings.dtype, self.device)
        metrics = self.metrics = InferenceMetrics()
        limit, panics, on_begin = settings.stuck_seconds or inf, metrics.panics.inc, metrics.queue_wait.observe
        self.queue = DeviceQueue(self.device, limit=limit, on_begin=on_begin, on_panic=panics, **queue_limits)
        self.heartbeat = self.queue.heartbeat
        budget = default_budget(self.device) if budget is None else budget
        self.pool = ModelPool(
            self.device, self.dtype, budget, self.heartbeat, ChecksumCache.of(settings), self._reserved_memory
        )
        self.baselines = PlainBaselines()
        self.prompts = Prompts(metrics.prompt.observe, metrics.prompts_failed.inc, on_panic=panics, **queue_limits)
        self.queue.submit(UPKEEP, lambda _: self._import())
        self.closing = self._is_freeing_memory = False
        self._add_gauges()

    def close(self, timeout: float = 2.0) -> None:
        """Stop the current generation between two steps and join the threads."""
        self.closing = True
        self.prompts.close(timeout)
        self.queue.close(timeout)

    @property
    def failure(self) -> str:
        """Why the engine cannot process requests any more, as a sentence, or ""."""
        for name, queue in ((f"device {self.device}", self.queue), ("prompts", self.prompts.queue)):
            if reason := queue.failure:
                return f"The thread of the {name} does not work: {reason}."
        return ""

    def answer(
        self,
        ref: ModelRef,
        request: GenerationRequest,
        prompt_ids: list[int],
        on_step: Callable[[dict[str, Any]], None],
        cancelled: threading.Event,
        on_start: Callable[[], None] = lambda: None,
        response_prefix: Sequence[int] = (),
        comparison_run_id: str = "",
    ) -> GenerationResult:
        """Generate the continuation of `prompt_ids` (see Prompts) and of `response_prefix`, existing token ids of the
        response. Call it on the device's thread. `on_start` is called before the first step, after the prompt was
        checked; `on_step` gets each step's trace record. Neither may block for long. `comparison_run_id`: set for a run
        of a comparison, which holds the device's lease and reuses no cached prefix, so that every column does the same
        work. Raises SpeculoosError or ApiError."""
        from decoding.generate import generate
        from decoding.stats import summarize
        from decoding.target import common_prefix
        from decoding.text import TextStream

        with self._handle_errors(ref):
            loaded = self.pool.get(ref)
            target, notices, prompt_ids = loaded.target, loaded.notices, [*prompt_ids, *response_prefix]
            self._set_threads()
            if comparison_run_id:
                target.rewind(0)
                lease = leases.exclusive_device(self.settings, self.lease_name, comparison_run_id)
            else:
                lease = leases.observed_device(self.settings, self.lease_name)
            with lease as sharing:
                _check_ids(target, request, prompt_ids)
                config = _config(request, target.max_length - len(prompt_ids), cancelled.is_set, notices)
                drafter = _drafter(loaded, request, notices)
                if config.probabilities and drafter.name != "none":
                    notices.append(RECORDED)
                cached_tokens = target.reused(prompt_ids, drafter.max_reusable_prefix(prompt_ids))
                stream, steps = TextStream(target.base.tokenizer, config.stop, response_prefix), []
                other_work = OtherCpuLoad()
                limit = self.heartbeat.limit
                seconds_per_row = 2 * loaded.nbytes / self.pool.itemsize / SLOWEST_FLOPS  # two operations per parameter
                with self.heartbeat.during("reading a prompt", limit + len(prompt_ids) * seconds_per_row):
                    on_start()
                    for step in generate(target, drafter, prompt_ids, config):
                        on_step(stream.record(step))
                        steps.append(step)
                        self.heartbeat.beat("decoding", limit + STEP_ROWS * seconds_per_row)
                other_load = other_work.share()
            conditions = Conditions.of(prompt_ids, steps, sharing.shared_with, other_load)
            if drafter.name == "none":
                self.baselines.offer(ref.base_key, steps, conditions)
            token_ids = [token.id for step in steps for token in step.tokens]
            summary = summarize(steps).to_json() | self.baselines.compare(ref.base_key, steps, conditions)
            if drafted := request.draft_tokens:
                accepted = common_prefix(drafted, token_ids)
                summary |= {"draft_tokens": len(drafted), "accepted_draft_tokens": accepted}
            summary |= {
                "model": ref.name,
                "drafter": drafter.name,
                "device": self.device,
                "dtype": self.dtype,
                "prompt_tokens": len(prompt_ids),
                "cached_tokens": cached_tokens,
                "notices": notices,
                "shared_with": sharing.shared_with,
                "other_load": other_load,
            }
            self.metrics.generated(summary)
            return GenerationResult(stream.text, token_ids, summary)

    @contextmanager
    def _handle_errors(self, ref: ModelRef) -> Iterator[None]:
        try:
            yield
        except SpeculoosError:
            raise
        except Exception as error:
            if out_of_memory(error):
                message = f"There is not enough memory for {ref.name} now; wait for the running job to end."
                raise Unavailable(message) from None
            raise
        except BaseException:  # such as a panic in Rust code, which may have left partial state
            self.pool.reset_base(ref)
            raise

    def unload_for_job(self) -> None:
        """Unload all models from a GPU that a job holds, after IDLE_SECONDS without requests."""
        idle = time.monotonic() - self.queue.idle_since > IDLE_SECONDS
        if self.device == "cpu" or not len(self.pool) or not idle or self.queue.busy:
            return
        if job := leases.job_on(self.settings, self.lease_name):
            log.info("Unloading models: %s holds %s", job, self.device)
            self.queue.submit(UPKEEP, lambda _: self.pool.clear())

    def _reserved_memory(self) -> tuple[str, int]:
        return leases.reserved_memory(self.settings, self.lease_name)

    def release_memory(self, devices: Sequence[str]) -> dict[str, Any]:
        """Unload models for a job that waits for memory of `devices` (`models.base.lease_name`), as soon as no request
        runs. Returns `bytes` of device memory in use by models, `planned`: more bytes that they will need, `loading`:
        whether another model is being loaded. Raises Unavailable."""
        if self.failure:
            raise Unavailable(self.failure)
        if self.device != "cpu" and self.lease_name in devices and not self._is_freeing_memory:
            self._is_freeing_memory = True
            self.queue.submit(UPKEEP, lambda _: self._free_memory())
        pool = self.pool
        state = {"bytes": pool.device_bytes, "planned": pool.planned_bytes, "loading": pool.loading}
        return {"device": self.lease_name, **state}

    def _free_memory(self) -> None:
        try:
            self.pool.free_memory()
        finally:
            self._is_freeing_memory = False

    def _set_threads(self) -> None:
        """Half of the CPU threads while a job holds the CPU. Two programs that each use every core wait for each other
        after every matmul: the starter on two cores next to a training, 0.4 tokens per second; with one thread 4.6."""
        import torch

        if self.device == "cpu":
            job = leases.job_on(self.settings, self.lease_name)
            threads = max(1, self._threads // 2) if job else self._threads
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)

    def _import(self) -> None:
        with self.heartbeat.during("importing libraries", START_SECONDS + self.heartbeat.limit):
            for name in PRELOADED:
                with suppress(ImportError):  # another version of transformers may have moved it
                    importlib.import_module(name)

    def _add_gauges(self) -> None:
        watch, queue, prompts = self.metrics.watch, self.queue, self.prompts.queue
        watch("device_heartbeat_age_seconds", "Since the last heartbeat of the device", lambda: queue.heartbeat.age)
        watch("device_alive", "1 while the device's thread works, 0 if it is stuck or dead", lambda: not queue.failure)
        watch("device_busy", "1 while the device works on a request", lambda: queue.busy)
        watch("queue_length", "Requests that wait for the device", lambda: queue.waiting)
        watch("queue_lanes", "Clients whose requests wait for the device", lambda: queue.waiting_clients)
        watch("prompts_queue_length", "Requests that wait for chat template and tokenizer", lambda: prompts.waiting)
        watch("pool_bytes", "Weights and caches of loaded models", lambda: self.pool.nbytes)
        watch("pool_budget_bytes", "Limit of pool_bytes", lambda: self.pool.budget)
        watch("pool_bases", "Loaded base models", lambda: len(self.pool))


def _check_ids(target: Any, request: GenerationRequest, prompt_ids: list[int]) -> None:
    """Check before the response starts, while an HTTP status can still be set."""
    limit, last, param = target.max_length, target.base.vocab_size - 1, request.INPUT
    if len(prompt_ids) >= limit:
        chat = param == "messages"
        message = (
            f"{'The messages have' if chat else 'The prompt has'} {len(prompt_ids)} tokens, but this model's context "
            f"has {limit}, including the response; {'shorten them or start a new chat' if chat else 'shorten it'}."
        )
        raise ApiError(400, message, "context_length_exceeded", param)
    for name, ids in (("draft_tokens", request.draft_tokens), (param, prompt_ids)):
        if ids and not 0 <= min(ids) <= max(ids) <= last:
            raise ApiError(400, f"{name}: token ids of this model are 0 to {last}.", "invalid_value", name)


def _config(request: GenerationRequest, available: int, should_stop: Callable[[], bool], notices: list[str]) -> Any:
    from decoding.config import GenerateConfig

    speculation = request.speculation or {}
    acceptance = {name: speculation[name] for name in ACCEPTANCE_OPTIONS if speculation.get(name) is not None}
    if acceptance.get("acceptance") == "typical":
        notices.append(LOSSY if request.temperature else EXACT_GREEDY)
    if request.limit() > available:
        notices.append(f"The response is truncated after {available} tokens, where the model's context is full.")
    return GenerateConfig(
        max_tokens=request.limit(),
        temperature=request.temperature or 0.0,
        top_k=request.top_k or 0,
        top_p=1.0 if request.top_p is None else request.top_p,
        seed=request.seed,
        stop=tuple(request.stop or ()),
        **acceptance,
        probabilities=bool(speculation.get(PROBABILITIES)),
        should_stop=should_stop,
    )


def _drafter(loaded: PooledModel, request: GenerationRequest, notices: list[str]) -> Any:
    """The requested drafter, which proposes the client's draft tokens first."""
    from decoding.drafters.base import ClientDrafter

    speculation = request.speculation or {}
    options = {k: v for k, v in speculation.items() if k not in (*ACCEPTANCE_OPTIONS, PROBABILITIES)}
    try:
        drafter = loaded.drafter(options)
        if drafter.name == "none" and loaded.draft is None and "drafter" not in options and not request.draft_tokens:
            notices.append(NO_DRAFT)
    except Unsupported as error:
        if options.get("drafter"):
            raise
        notices.append(f"Speculation is off: {error}")
        drafter = loaded.drafter({"drafter": "none"})
    except (TypeError, ValueError) as error:
        raise BadInput(f"speculation: these options cannot be used together ({error}).") from None
    if request.draft_tokens and loaded.base.no_drafting_reason:
        notices.append(f"draft_tokens were not used: {loaded.base.no_drafting_reason}")
    elif request.draft_tokens:
        return ClientDrafter(drafter, request.draft_tokens)
    return drafter
