"""Jobs `plan`, `replay` and `tune`, and the loading of models onto the leased device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from corpus.recordings import read_recordings
from evaluation.costs import Costs
from evaluation.planner import PlanOptions, plan
from evaluation.replay import open_with_base, playground_answer, project_times, replay, replay_metrics
from evaluation.tuning import TunedDraft, can_be_tuned, tune
from models.base import decoding_dtype, lease_name, load_base, pick_device
from models.checkpoints import load_draft, update_draft_config
from speculoos.cpu_load import lower_priority, lower_session_priority
from speculoos.errors import BadInput, Unsupported
from speculoos.files import total_bytes
from tracking import evaluations, queries
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, now
from workers.child.context import JobContext
from workers.child.gpu_memory import gpus_needed, model_memory, wait_for_memory
from workers.child.work.evaluate import request_questions
from workers.jobs.requests import PlanRequest, ReplayRequest, Tune


@dataclass(frozen=True)
class LoadedModels:
    """A base model on the leased device; with a checkpoint also its draft and its row."""

    device: str
    dtype: str
    base: Any
    draft: Any = None
    checkpoint: Any = None


def load_models(context: JobContext, base_id: str, checkpoint_id: str = "", dtype: str = "") -> LoadedModels:
    """Take the device and load; `dtype` "" uses the settings. Raises NotFound, Conflict or Damaged."""
    base_row = context.input_with_files(Base, base_id)
    row = context.input_with_files(Checkpoint, checkpoint_id) if checkpoint_id else None
    dtype = decoding_dtype(dtype or context.settings.dtype, context.settings.device)
    paths = [each.path for each in (base_row, row) if each]
    device = take_device(context, memory=partial(model_memory, paths, dtype))
    base = load_base(base_row.path, dtype, device, context.base_checksums(base_row), context.checksum_cache)
    draft = load_draft(row.path, base, base_row.weights_sha256, row.sha256, context.checksum_cache) if row else None
    return LoadedModels(device, dtype, base, draft, row)


def take_device(context: JobContext, name: str = "auto", memory: Callable[..., float] | None = None) -> str:
    """Take the lease of a device and return its name, such as `cuda:0`. auto: the device of SPECULOOS_DEVICE. With
    `memory` (`gpus_needed`): take as many GPUs as it needs, wait until it is free, and return their names for
    `load_base`, such as `cuda:3,cuda:2`."""
    devices = take_devices(context, name, gpus=partial(gpus_needed, memory) if memory else None)
    if memory is not None:
        wait_for_memory(context, devices, lambda: memory(gpus=len(devices)))
    return ",".join(map(str, devices))


def take_devices(
    context: JobContext,
    name: str = "auto",
    processes: int = 1,
    gpus: Callable[[Sequence[int]], int] | None = None,
) -> list[torch.device]:
    """Take the leases of one GPU for each process, or of the CPU for all. Unless `name` is that of one GPU, these are
    any free ones, the last first: the inference server uses the first. `gpus`: number of GPUs for one process, from the
    bytes of those that it may use."""
    name = context.settings.device if name == "auto" else name
    device = pick_device(name)
    candidates = [device]
    if device.type == "cuda" and (processes > 1 or name in ("auto", "cuda")):
        candidates = [torch.device("cuda", number) for number in reversed(range(torch.cuda.device_count()))]
    count = processes if device.type == "cuda" else 1
    if gpus is not None and device.type == "cuda":
        count = gpus([torch.cuda.get_device_properties(each).total_memory for each in candidates])
    if count > len(candidates):
        raise BadInput(f"processes: this machine has {len(candidates)} GPUs, got {count}; use fewer processes.")
    names = {lease_name(candidate): candidate for candidate in candidates}
    devices = [names[leased] for leased in context.acquire_devices(list(names), count)]
    if device.type == "cuda":
        torch.cuda.set_device(devices[0])  # else libraries would use memory of the first GPU
        for each in devices:
            context.log(f"Using {each}, {torch.cuda.get_device_name(each)} ({lease_name(each)}).")
    lower_priority(device.type)
    lower_session_priority(device.type)  # a job leads one of its own
    return devices


def run_plan(request: PlanRequest, context: JobContext) -> dict[str, Any]:
    """Predict the speed of drafting from the cost of steps on this or on another machine; returns the plan."""
    costs = Costs.from_json(request.costs, "The figures of the other machine") if request.costs else None
    questions = request_questions(request, context)
    loaded = load_models(context, request.base_id, request.checkpoint_id)
    choices = PlanOptions(tuple(request.batches), tuple(request.layers), max_tokens=request.max_tokens)
    context.log(f"Planning on {loaded.device} with {len(questions)} questions.")
    result = plan(loaded.base, loaded.draft, questions, context, costs=costs, options=choices)
    context.log(result["verdict"])
    return result


def run_replay(request: ReplayRequest, context: JobContext) -> dict[str, Any]:
    """Evaluate a checkpoint on the recorded answers of a dataset; the first `request.show` are stored as chats."""
    data = context.input_with_files(Dataset, request.dataset_id)
    loaded = load_models(context, request.base_id, request.checkpoint_id)
    opened = open_with_base(loaded.base, loaded.draft, request.drafting)
    recordings = read_recordings(data.path, limit=request.limit)
    done = replay(recordings, opened.target, opened.new_drafter, context, request.limit)
    done, speed = project_times(done, opened.costs())
    result = replay_metrics(done, loaded.base.tokenizer) | speed
    result[evaluations.REPLAYED] = {"file": data.name, "rows": len(done.rows), "drafting": request.drafting}
    answers = [playground_answer(row, loaded.base.tokenizer, data.name) for row in done.rows[: request.show]]
    with context.fenced() as session:
        evaluation = session.get_one(Evaluation, request.evaluation_id)
        evaluation.state, evaluation.result = "ready", result
        model = queries.model_name(session, request.base_id, request.checkpoint_id)
        chats = [run.group_id for run in evaluations.save_responses(session, model, answers)]
    return {"evaluation_id": request.evaluation_id, "chats": chats, **speed, "tau": result["mean_accepted_length"]}


def run_tune(request: Tune, context: JobContext) -> dict[str, Any]:
    """Find the fastest tree of a checkpoint on this device. The figures are stored in the checkpoint's row, a tree that
    is faster also in its files, unless they are shared by all homes. A killed attempt measures again."""
    questions = request_questions(request, context, last=True)  # evaluations use the first ones
    loaded = load_models(context, request.base_id, request.checkpoint_id, request.dtype)
    if not can_be_tuned(loaded.draft):
        raise Unsupported(f"Drafts of the method {loaded.draft.method} have no tree to tune.")
    context.log(f"Tuning on {loaded.device} in {loaded.dtype} with {len(questions)} questions.")
    tuned = tune(loaded.base, loaded.draft, questions, context, max_tokens=request.max_tokens, report_progress=True)
    context.log(tuned.plan.verdict)
    folder = Path(loaded.checkpoint.path)
    faster = request.keep and bool(tuned.drafting)
    saved = faster and folder.resolve().is_relative_to(context.settings.home.resolve())
    if saved:
        context.check_owned()
        update_draft_config(folder, drafting=tuned.drafting, tuning=tuned.plan.to_json())
        context.update_output(Checkpoint, request.checkpoint_id, path=str(folder), size_bytes=total_bytes(folder))
    elif faster:
        context.log("The tree is not saved, because the checkpoint's files are outside the home folder.", "warning")
    figures = tuning_figures(tuned, saved, context.job_id)
    context.add_figures(request.checkpoint_id, figures)
    return {"checkpoint_id": request.checkpoint_id, **figures["tuned"]}


def tuning_figures(tuned: TunedDraft, saved: bool, job_id: str) -> dict[str, Any]:
    """Tuning figures of a checkpoint's row: `tuning` is the verdict, `tuned` the numbers."""
    numbers = {**tuned.to_json(), "kept": saved, "at": now().isoformat(timespec="seconds"), "job_id": job_id}
    return {"tuning": tuned.plan.verdict, "tuned": numbers}
