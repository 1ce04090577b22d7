"""The training loop: the same for every method, one process or several, resumable at every saved step.

One optimizer step takes `accumulate` × processes micro-batches. Each loss term is summed over all of them and divided
by its count over all of them, so that padding, masks and the number of processes do not change its value.
All randomness is a function of (seed, step): a resumed run equals an uninterrupted one.
Independent of database and web; progress goes to a Reporter.
"""

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from models.base import load_base, training_dtype
from models.checkpoints import read_config, save_draft, stored_tensors, verify_sums
from models.damage import UNSAVED, BaseChecksums, check_base
from models.head_only import HeadOnlyBase, load_head_only_base
from models.identity import tokenizer_sha256, weights_sha256
from models.methods.settings import TrainConfig, max_length_error
from models.runtime.precision import enable_tf32
from models.runtime.weights import pack_supported
from speculoos.checksums import ChecksumCache
from speculoos.errors import Cancelled, SpeculoosError
from speculoos.reporting import Reporter, SilentReporter
from training import resume_points
from training.acceptance import StepMetrics, eval_values, measure_acceptance
from training.batches import DataStats, load_conversations, split_held_out
from training.hidden_states.prefetcher import FeatureSource, ServerWaitMonitor, StatesLocation, connect_prefetcher
from training.method import make_method, with_draws
from training.samples import can_be_sampled, sample
from training.setup import lr_factor, make_accelerator, nonfinite_loss_error, prepare, translate_errors
from training.sharding import full_tensor, full_tensors, mixed_with_plain_tensors
from training.stream import FeatureStore, Stream, feature_bytes

SAMPLING_SHARE = 0.1  # maximum share of the training time spent on sample generations
NO_BEST = {"tau": None, "step": 0, "worse": 0}  # the best evaluation so far, and the number of evaluations since: none


@dataclass(frozen=True)
class TrainResult:
    """The checkpoint folder of the chosen draft (the best on held-out data, else the last), and its metrics."""

    folder: Path
    step: int
    metrics: dict[str, Any] = field(default_factory=dict)


def train(
    config: TrainConfig,
    base_path: str | Path,
    dataset_path: str | Path | Sequence[str | Path],
    out_dir: str | Path,
    resume_from: str | Path | None = None,
    reporter: Reporter | None = None,
    info: dict[str, Any] | None = None,
    known: BaseChecksums | None = None,
    checksum_cache: ChecksumCache = UNSAVED,
    states_location: StatesLocation | None = None,
    sharding: str = "none",
) -> TrainResult:
    """Train a draft for the base at `base_path` on the dataset folder `dataset_path`, or on several together.

    Writes `out_dir`/state-<step> (to resume from), `out_dir`/best and `out_dir`/final. `resume_from` is a folder
    with resume points, such as the `out_dir` of an earlier attempt: the newest complete one is used; without any the
    run starts from the beginning. `info` may hold `base`, `base_sha256`, `dataset` and `notes` for the checkpoint.
    `known`: checksums that the base's files are verified against; `checksum_cache`: computed checksums of unchanged
    files. `states_location`: the server and the folder that `config` names for hidden states. `sharding`: none or fsdp
    (training/sharding.py), if several processes call this function together. Raises Cancelled, after
    saving a resume point, when the reporter requests a stop; Damaged when the base's or the data's files do not match
    their checksums.
    """
    if known is not None:
        check_base(base_path, known, checksum_cache)
    sharded = sharding == "fsdp"
    with translate_errors(), mixed_with_plain_tensors(sharded):
        out_dir, reporter = Path(out_dir), reporter or SilentReporter()
        trainer = Trainer(config, base_path, dataset_path, out_dir, reporter, info or {}, states_location, sharded)
        return trainer.run(resume_from)


class Trainer:
    def __init__(
        self,
        config: TrainConfig,
        base_path: str | Path,
        dataset_path: str | Path | Sequence[str | Path],
        out_dir: Path,
        reporter: Reporter,
        info: dict[str, Any],
        states_location: StatesLocation | None = None,
        sharded: bool = False,
    ):
        self.started, self.sampling_seconds = time.monotonic(), 0.0
        self.config, self.out_dir, self.reporter = config, out_dir, reporter
        self.accelerator = make_accelerator(config)
        self.is_main = self.accelerator.is_main_process
        device = self.accelerator.device
        enable_tf32(device)
        load = load_head_only_base if config.hidden_states else load_base
        dtype = training_dtype(config.base_dtype, device)
        divided = "," in config.device and not config.hidden_states  # the base among several GPUs
        self.base = base = load(base_path, dtype=dtype, device=config.device if divided else str(device))
        if config.base_dtype == "default":  # stored as what it was, since it depends on the machine
            self.config = config = config.model_copy(update={"base_dtype": dtype})
        self.info = {**info, "base_sha256": info.get("base_sha256") or weights_sha256(base_path)}
        if config.max_length > base.max_length:
            if "max_length" in config.model_fields_set:
                raise max_length_error(base.max_length, config.max_length)
            self.config = config = config.model_copy(update={"max_length": base.max_length})
        training, held_out, self.data = self._read_data(base, base_path, dataset_path)
        self.config = config = config.for_tokens(self.data.tokens)
        self.wait_monitor = ServerWaitMonitor(reporter, config.hidden_states)
        self.prefetcher = connect_prefetcher(
            config, states_location, base, self.info["base_sha256"], training, self.wait_monitor
        )
        torch.manual_seed(config.seed)
        self.method = make_method(config, base, training)
        if not isinstance(base, HeadOnlyBase):
            pack_supported(base, head=False)
        self.wrapped, self.optimizer = prepare(config, self.accelerator, self.method, sharded)
        prefetch_batches = config.hidden_states_ahead if isinstance(base, HeadOnlyBase) else 0
        sources = [FeatureSource(self.method, base, self.prefetcher, prefetch_batches) for _ in range(2)]
        self.stream = Stream(training, config, sources[0], self._feature_store(0.8))
        self.held_out = Stream(held_out, config, sources[1], self._feature_store(0.2))
        self.step, self.previous_minutes, self.tokens_seen = 0, 0.0, 0  # minutes of earlier attempts
        self.loss: float | None = None
        self.best: dict[str, Any] = NO_BEST
        self.evaluated_step = self.sampled_step = -1  # steps of the last evaluation and of the last samples
        batches_per_step = config.accumulate * self.accelerator.num_processes
        limits = [n for n in (math.ceil(config.epochs * len(self.stream) / batches_per_step), config.max_steps) if n]
        self.total_steps = min(limits, default=0)  # 0 when only the time is limited
        self.config = config.for_steps(self.total_steps, sum(map(len, held_out)) / config.step_tokens)
        self.step_metrics = StepMetrics()

    def run(self, resume_from: str | Path | None = None) -> TrainResult:
        self._resume(resume_from)
        note = getattr(self.method, "start_note", "")
        count = sum(p.numel() for p in self.method.parameters() if p.requires_grad)
        self.reporter.log(
            f"{self.data.sentence()} {len(self.held_out.conversations)} conversations held out, "
            f"{self.stream.padding:.0%} padding, {count / 1e6:.2f} M trainable parameters, "
            f"base in {str(self.base.dtype).removeprefix('torch.')}, "
            f"{self.total_steps or 'any number of'} steps of {self.config.batch_tokens} tokens"
            + (f", at most {self.config.max_minutes:g} minutes." if self.config.max_minutes else ".")
            + (f" {note}" if note else "")
        )
        self.wait_monitor.progress = lambda: (self.step, self._expected_steps())
        if self.accelerator.num_processes == 1:  # several processes wait at different points
            self.wait_monitor.before_stop = self._save_resume_point
        try:
            while not self._finished():
                self._stop_if_requested()
                self._train_step()
                if self._is_due(self.config.eval_every) and not self._finished():
                    self._evaluate()
                if self._is_due(self.config.save_every):
                    self._save_resume_point()
            return self._finish()
        finally:
            if self.prefetcher:
                self.prefetcher.close()
            self.stream.store.clear()
            self.held_out.store.clear()

    def _resume(self, resume_from: str | Path | None) -> None:
        resume_point = resume_points.latest_undamaged_resume_point([resume_from], self._warn)
        if self.is_main:
            resume_points.remove_damaged(self.out_dir)
        if resume_point is None:
            return
        trainer_state = resume_points.read_trainer_state(resume_point)
        resume_points.check_resumable(trainer_state, self._fingerprint(), resume_point)
        resume_points.load_resume_point(resume_point, self.method.draft, self.optimizer)
        if trainer_state.get("scaler"):
            self.accelerator.scaler.load_state_dict(trainer_state["scaler"])
        self.step, self.tokens_seen = trainer_state["step"], trainer_state["tokens"]
        self.previous_minutes, self.best = trainer_state["elapsed"], trainer_state["best"]
        if (unlogged := trainer_state.get("window")) and unlogged["steps"]:
            self.step_metrics = StepMetrics.restored(**unlogged, main=self.is_main, device=self.accelerator.device)
        self._restore_best(resume_point.parent / "best")
        if self.is_main and resume_point.parent.resolve() != self.out_dir.resolve():
            resume_points.remove_scratch(resume_point.parent)
        self.reporter.log(f"Resumed from step {self.step}.")

    def _train_step(self) -> None:
        world_size, rank = self.accelerator.num_processes, self.accelerator.process_index
        batches_per_step = self.config.accumulate * world_size
        progress = self._broadcast_progress(self._progress(0.5))
        lr = self.config.lr * lr_factor(min(progress, 1.0), self.config.warmup_ratio, self.config.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        micro_batches = list(range(self.step * batches_per_step + rank, (self.step + 1) * batches_per_step, world_size))
        features = [self._features(micro_batch) for micro_batch in micro_batches]
        if self.step == 0:
            self._log_cache_size(len(self.stream) * feature_bytes(features[0]))
        features = [with_draws(self.method, f, self._seed(n)) for f, n in zip(features, micro_batches, strict=True)]
        counts = self._all_reduce_sum(torch.stack([self.method.counts(f) for f in features]).sum(0))
        scale = torch.tensor(self.method.weights, device=counts.device) / counts.clamp(min=1)
        self.wrapped.train()
        with self.accelerator.no_sync(self.wrapped):
            for micro_batch, batch in zip(micro_batches[:-1], features[:-1], strict=True):
                self._backward(micro_batch, batch, scale)
        self._backward(micro_batches[-1], features[-1], scale)
        norm = float(
            full_tensor(self.accelerator.clip_grad_norm_(self.method.parameters(), self.config.clip or math.inf))
        )
        if not math.isfinite(norm) and self.config.mixed_precision != "fp16":  # with fp16 such steps are skipped
            raise nonfinite_loss_error(self.step + 1, lr, self.config.mixed_precision)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self._log_step(lr, norm, micro_batches)

    def _features(self, micro_batch: int) -> dict[str, Tensor]:
        world_size = self.accelerator.num_processes
        end = self.total_steps * self.config.accumulate * world_size or micro_batch + len(self.stream) * world_size
        upcoming = (self.stream.index(later) for later in range(micro_batch + world_size, end, world_size))
        return self.stream.features(self.stream.index(micro_batch), upcoming)

    def _backward(self, micro_batch: int, features: dict[str, Tensor], scale: Tensor) -> None:
        """Gradient of Σ_k scale_k · sum_k. DDP and FSDP take the mean over processes, hence the factor."""
        seed = self._seed(micro_batch)
        torch.manual_seed(seed)  # for draft models with dropout
        with self.accelerator.autocast():
            outcome = self.wrapped(features, seed, scale * self.accelerator.num_processes)
        self.accelerator.backward(outcome.loss)
        self.step_metrics.add((outcome.loss_sums * scale).sum(), outcome.hits.sum(0), outcome.valid.sum(0))

    def _seed(self, micro_batch: int) -> int:
        return (self.config.seed * 1_000_003 + micro_batch) % 2**63

    def _log_step(self, lr: float, norm: float, micro_batches: list[int]) -> None:
        tokens = torch.tensor(sum(self.stream.tokens(self.stream.index(n)) for n in micro_batches))
        self.step_metrics.tokens += int(self._all_reduce_sum(tokens.to(self.accelerator.device)))
        self.step_metrics.steps += 1
        if not self._is_due(self.config.log_every):
            return
        totals = self._all_reduce_sum(self.step_metrics.packed(self.accelerator.device))
        values = self.step_metrics.values(totals, self.method.depth_name, self.accelerator.device)
        if not math.isfinite(values["train/loss"]):
            raise nonfinite_loss_error(self.step, lr, self.config.mixed_precision)
        self.tokens_seen, self.loss = self.tokens_seen + self.step_metrics.tokens, values["train/loss"]
        self.step_metrics = StepMetrics()
        if self.is_main:
            self.reporter.metrics(self.step, {**values, "train/lr": lr, "train/grad_norm": norm, **self._chart_axes()})
            self.reporter.progress(self.step, self._expected_steps(), "steps", f"loss {values['train/loss']:.3f}")

    def _evaluate(self, last: bool = False) -> None:
        if not self.held_out.conversations:
            return
        self.evaluated_step = self.step
        self.wrapped.eval()
        count = len(self.held_out)
        batches = (self.held_out.features(i, range(i + 1, count)) for i in range(count))
        acceptance = measure_acceptance(self.method, batches)
        tensors = self._draft_tensors()
        improved = acceptance.tau > (self.best["tau"] or 0.0)
        if improved:
            self.best = {"tau": acceptance.tau, "step": self.step, "worse": 0}
            self.best |= {"top1": acceptance.top1(), "tree": acceptance.tree_tau()}
        else:
            self.best = {**self.best, "worse": self.best["worse"] + 1}
        if self.is_main:
            self.reporter.metrics(self.step, {**eval_values(acceptance, self.method.depth_name), **self._chart_axes()})
            self._sample(tensors, last)
            if improved:
                self._save_draft("best", self._result_metrics(), tensors)

    def _sample(self, tensors: dict[str, Tensor], last: bool) -> None:
        """Log greedy answers: at the first and the last evaluation, and between them within SAMPLING_SHARE."""
        due = last or self.sampling_seconds <= SAMPLING_SHARE * self._elapsed_minutes() * 60
        if isinstance(self.base, HeadOnlyBase) or not due:
            return
        began, self.sampled_step = time.monotonic(), self.step
        fit = [c for c in self.held_out.conversations if can_be_sampled(self.base, c)]
        for conversation in fit[: self.config.samples]:
            self.reporter.sample(self.step, sample(self.base, self.method.draft, conversation, tensors))
        self.sampling_seconds += time.monotonic() - began

    def _save_resume_point(self) -> None:
        tensors = self._draft_tensors()
        optimizer_state = full_tensors(resume_points.optimizer_tensors(self.optimizer), self.is_main)
        metrics = self.step_metrics  # of the steps since the last log line
        totals = self._all_reduce_sum(metrics.packed(self.accelerator.device)).tolist() if metrics.steps else []
        if not self.is_main or not self.reporter.keep():  # a run resumed from here would not report these steps again
            return
        trainer_state = {
            "step": self.step,
            "elapsed": self._elapsed_minutes(),  # in minutes
            "tokens": self.tokens_seen,
            "window": {"totals": totals, "steps": metrics.steps, "tokens": metrics.tokens},
            "best": self.best,
            **self._fingerprint(),
            "scaler": self.accelerator.scaler.state_dict() if self.accelerator.scaler else {},
        }
        resume_points.save_resume_point(self.out_dir, tensors, optimizer_state, trainer_state, self.config.keep_last)

    def _stop_if_requested(self) -> None:
        stop = self._all_reduce_sum(torch.tensor(int(self.reporter.stop_requested()), device=self.accelerator.device))
        if stop:
            self._save_resume_point()
            raise Cancelled(f"Stopped at your request after step {self.step}; a resumed run continues from there.")

    def _finish(self) -> TrainResult:
        if self.evaluated_step != self.step:
            self._evaluate(last=True)
        metrics, tensors = self._result_metrics(), self._draft_tensors()
        if self.is_main:
            if self.sampled_step != self.step:  # the last evaluation did not know that it was the last
                self._sample(tensors, last=True)
            if self.held_out.conversations and (self.out_dir / "best").exists():
                verify_sums(self.out_dir / "best")
                tensors = load_file(self.out_dir / "best" / "model.safetensors")
            self._save_draft("final", metrics, tensors)
            self.reporter.progress(self.step, self.step, "steps", "done")
            tau = metrics.get("mean_accepted_length")
            measured = f", held-out mean accepted length {tau:.2f} (step {metrics['best_step']})" if tau else ""
            self.reporter.log(f"Trained {self.step} steps in {metrics['minutes']:g} minutes{measured}.")
        self.accelerator.wait_for_everyone()
        return TrainResult(self.out_dir / "final", self.step, metrics)

    def _log_cache_size(self, total: int) -> None:
        share = min((self.config.cache_features_mb * 2**20 + self.config.cache_disk_gb * 1e9) / max(total, 1), 1)
        self.reporter.log(
            f"Hidden states of all batches take {total / 1e9:.2f} GB; {share:.0%} of them fit in the cache "
            "(cache_features_mb, cache_disk_gb)."
        )

    def _feature_store(self, fraction: float) -> FeatureStore:
        folder = self.out_dir / f".features-{self.accelerator.process_index}-{fraction}"
        shutil.rmtree(folder, ignore_errors=True)
        fraction /= self.accelerator.num_processes
        memory, disk = self.config.cache_features_mb * 2**20, self.config.cache_disk_gb * 1e9
        return FeatureStore(int(memory * fraction), int(disk * fraction), folder)

    def _fingerprint(self) -> dict[str, Any]:
        """Everything that determines the batches and the computation of a step; must match to resume."""
        data = f"{self.data.conversations} conversations with {self.data.tokens} tokens"
        return {
            "config": self.config.to_json(),
            "processes": self.accelerator.num_processes,
            "made_of": {"base": self.info["base_sha256"], "data": data},
        }

    def _all_reduce_sum(self, tensor: Tensor) -> Tensor:
        return self.accelerator.reduce(tensor, reduction="sum") if self.accelerator.num_processes > 1 else tensor

    def _broadcast_progress(self, progress: float) -> float:
        """The first process's value of `progress`: clocks differ, but all processes must take the same step."""
        if not self.config.max_minutes or self.accelerator.num_processes == 1:
            return progress
        return float(self._all_reduce_sum(torch.tensor(progress * self.is_main, device=self.accelerator.device)))

    def _is_due(self, n: int) -> bool:
        return n > 0 and self.step % n == 0

    def _elapsed_minutes(self) -> float:
        """Training minutes, earlier attempts included, without the time spent waiting for an unavailable server."""
        return self.previous_minutes + (time.monotonic() - self.started - self.wait_monitor.seconds) / 60

    def _chart_axes(self) -> dict[str, float]:
        return {"train/tokens": self.tokens_seen + self.step_metrics.tokens, "train/minutes": self._elapsed_minutes()}

    def _progress(self, offset: float = 0.0) -> float:
        by_steps = (self.step + offset) / self.total_steps if self.total_steps else 0.0
        return max(by_steps, self._elapsed_minutes() / self.config.total_minutes)

    def _finished(self) -> bool:
        patience_left = self.config.patience == 0 or self.best["worse"] < self.config.patience
        finished = torch.tensor(int(self._progress() >= 1 or not patience_left), device=self.accelerator.device)
        return bool(self._all_reduce_sum(finished))

    def _expected_steps(self) -> int:
        return max(self.step, round(self.step / max(self._progress(), 1e-9)))

    def _read_data(self, base: Any, base_path: Any, dataset_path: Any) -> tuple[list, list, DataStats]:
        config, eos_ids, sha256 = self.config, sorted(base.eos_ids), tokenizer_sha256(base_path)
        folders = [dataset_path] if isinstance(dataset_path, str | Path) else dataset_path
        with self.accelerator.main_process_first():  # it tokenizes and caches, the others read
            loaded = [
                load_conversations(
                    folder, base.tokenizer, config.max_length, base.vocab_size, eos_ids, sha256, self.reporter
                )
                for folder in folders
            ]
        conversations = [conversation for part, _ in loaded for conversation in part]
        training, held_out = split_held_out(conversations, config.held_out, config.max_held_out, config.seed)
        return training, held_out, sum((stats for _, stats in loaded), DataStats())

    def _result_metrics(self) -> dict[str, Any]:
        tokens = self.tokens_seen + self.step_metrics.tokens  # includes those since the last log line
        metrics: dict[str, Any] = {"step": self.step, "minutes": round(self._elapsed_minutes(), 2), "tokens": tokens}
        if self.loss is not None:
            metrics["loss"] = round(self.loss, 4)
        if self.best.get("top1"):
            metrics["best_step"] = self.best["step"]
            metrics["mean_accepted_length"] = self.best["tau"]
            metrics["expected_tree_length"] = self.best["tree"]
            metrics["top1"] = [round(x, 4) for x in self.best["top1"]]
        return metrics

    def _draft_tensors(self) -> dict[str, Tensor]:
        """The draft's full tensors in the main process. Collective (training/sharding.py)."""
        return full_tensors(stored_tensors(self.method.draft), self.is_main)

    def _save_draft(self, name: str, metrics: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        settings = {name: value for name, value in self.config.to_json().items() if name != "method"}
        data = {"dataset": self.info.get("dataset", ""), **self.data.to_json()}
        info = {**self.info, "dataset": data, "settings": settings, "figures": metrics}
        save_draft(self.out_dir / name, self.method.draft, info, self.config.save_dtype, tensors)

    def _restore_best(self, best: Path) -> None:
        metrics = {}
        try:
            if best.exists():
                verify_sums(best)
                metrics = read_config(best)["training"]["figures"]
        except SpeculoosError as error:
            self._warn(f"The best draft so far is left out: {error}")
        if metrics.get("best_step") != self.best["step"]:
            self.best = NO_BEST
        elif self.is_main and best.parent.resolve() != self.out_dir.resolve():
            shutil.copytree(best, self.out_dir / "best", dirs_exist_ok=True)

    def _warn(self, message: str) -> None:
        if self.is_main:
            self.reporter.log(message, "warning")
