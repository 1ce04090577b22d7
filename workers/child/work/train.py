"""Job `train`: trains a draft. Each attempt has its own folder and resumes from the last saved training state."""

import gc
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import select

from evaluation.questions import built_in
from evaluation.tuning import can_be_tuned, tune
from formats.refusals import no_server_reason
from models.base import decoding_dtype, lease_name, load_base
from models.checkpoints import load_draft, update_draft_config
from models.methods.recipes import config_for
from models.methods.settings import TrainConfig
from tracking import db
from tracking.tables import Base, Checkpoint, Dataset
from training.hidden_states.prefetcher import StatesLocation
from training.loop import train
from training.processes import Rendezvous, train_in_processes
from training.resume_points import latest_undamaged_resume_point, read_trainer_state
from workers.child.context import JobContext
from workers.child.gpu_memory import wait_for_memory
from workers.child.states import delete_uploaded_checkpoints, download_checkpoints, uploading_checkpoints
from workers.child.trackers import tracking_metrics
from workers.child.work.measure import take_devices, tuning_figures
from workers.jobs.train import TUNING_QUESTIONS, Train, find_server, fit_length, require_method
from workers.jobs.training_memory import Forecast

TUNING_NOTE = "tuning the tree"


def run(request: Train, context: JobContext) -> dict[str, Any]:
    """Train, fill the checkpoint's row, and delete the folders of earlier attempts."""
    base = context.input_with_files(Base, request.base_id)
    datasets = [context.input_with_files(Dataset, row_id) for row_id in request.dataset_ids]
    require_method(base, request.method)
    settings = {**request.settings, **initial_draft(request, context)}
    unfitted = config_for(request.method, request.recipe, settings)
    config = fit_length(unfitted, request.settings, base)
    if config is not unfitted:
        length = f"{config.max_length} tokens instead of {unfitted.max_length}"
        context.log(f"max_length: {length}, the maximum of this base.")
    store = config.hidden_states_store
    store_folder = context.settings.hidden_states_folder / store if store else None
    states = StatesLocation(find_server(context.settings, config), store_folder)
    folder = context.checkpoint_folder(request.checkpoint_id)
    download_checkpoints(context, request.checkpoint_id, folder.parent)
    earlier = context.earlier_attempts(request.checkpoint_id)
    resume = latest_undamaged_resume_point((folder, *earlier), lambda text: context.log(text, "warning"))
    if resume:  # earlier versions, or another machine, had other defaults
        config = with_stored_defaults(config, read_trainer_state(resume)["config"])
    if reason := no_server_reason(request.method, base.path):
        context.log(reason, "warning")
    alone = request.all_processes == 1  # only then the base may be divided among GPUs

    def gpus_needed(sizes: Sequence[int]) -> int:
        return forecast(request, context).divided(min(sizes), len(sizes)).gpus

    devices = take_devices(context, config.device, request.processes, gpus_needed if alone else None)
    gpus = len(devices) if alone else 1
    wait_for_memory(context, devices, lambda: replace(forecast(request, context), gpus=gpus).device_memory("cuda"))
    config = config.model_copy(update={"device": ",".join(map(str, devices if alone else devices[:1]))})
    info = {"base": base.name, "base_sha256": base.weights_sha256, "dataset": ", ".join(data.name for data in datasets)}
    hashes, paths = context.base_checksums(base), [data.path for data in datasets]
    tracked = {"base": base.name, "data": info["dataset"], "recipe": request.recipe, **config.to_json()}
    last_step = read_trainer_state(resume)["step"] if resume else -1
    with uploading_checkpoints(context, request.checkpoint_id, folder), tracking_metrics(context, tracked, last_step):
        arguments = (config, base.path, paths, folder, resume)
        options = {"info": info, "known": hashes, "states_location": states, "checksum_cache": context.checksum_cache}
        if alone:
            result = train(*arguments, context, **options)
        else:
            gpus = [lease_name(device) for device in devices if device.type == "cuda"]
            options["sharding"] = request.sharding
            if request.nodes > 1:
                job = context.job_id, context.attempt
                options["rendezvous"] = Rendezvous(request.nodes, request.rdzv_endpoint, job)
            result = train_in_processes(request.processes, gpus, context, *arguments, **options)
    note = "" if config.hidden_states else TUNING_NOTE
    context.progress(result.step, result.step, "steps", note)  # also if the attempt resumed at the last step
    facts = {"step": result.step, "base_sha256": base.weights_sha256}
    context.update_checkpoint_row(request.checkpoint_id, Path(result.folder), figures=result.metrics, **facts)
    if config.hidden_states:
        context.log("The tree was not tuned: this training does not load the base model.")
    else:
        figures = {**result.metrics, **tune_tree(context, base, config.device, result.folder)}
        context.update_checkpoint_row(request.checkpoint_id, Path(result.folder), figures=figures, **facts)
    for path in earlier:
        shutil.rmtree(path, ignore_errors=True)
    delete_uploaded_checkpoints(context, request.checkpoint_id)
    return {"checkpoint_id": request.checkpoint_id, "step": result.step, **result.metrics}


def forecast(request: Train, context: JobContext) -> Forecast:
    """The memory that the training needs."""
    with db.reading(context.settings) as session:
        return request.need(session).training_memory


def with_stored_defaults(config: TrainConfig, stored: dict[str, Any]) -> TrainConfig:
    """The config with the stored values of defaults that depend on the data or the machine."""
    defaults = {"batch_tokens": None, "base_dtype": "default"}
    unset = [name for name, default in defaults.items() if getattr(config, name) == default]
    update = {name: stored[name] for name in unset if name in stored}
    return config.model_copy(update=update)


def initial_draft(request: Train, context: JobContext) -> dict[str, str]:
    """Local path of the draft to continue from: a checkpoint of this home, or a folder; empty if none is set."""
    if not (path := request.settings.get("draft_path")):
        return {}
    with context.session() as session:
        row_id = session.scalar(select(Checkpoint.id).where(Checkpoint.path == str(path)))
    if row_id:
        return {"draft_path": context.input_with_files(Checkpoint, row_id).path}
    return {"draft_path": context.files.download_path(str(path))}


def tune_tree(context: JobContext, base: Base, device: str, folder: Path) -> dict[str, Any]:
    """Find the fastest tree on this machine and store it in the checkpoint; returns the figures for its row."""
    context.log("Tuning the tree for the most tokens per second on this machine.")
    gc.collect()  # the training's base, which its trainer holds in a cycle of references
    dtype = decoding_dtype(context.settings.dtype, device)
    loaded = load_base(base.path, dtype, device, context.base_checksums(base), context.checksum_cache)
    draft = load_draft(folder, loaded, base.weights_sha256, checksum_cache=context.checksum_cache)
    if not can_be_tuned(draft):
        return {"tuning": ""}
    tuned = tune(loaded, draft, built_in()[-TUNING_QUESTIONS:], context)
    update_draft_config(folder, drafting=tuned.drafting, tuning=tuned.plan.to_json())
    context.log(f"Tuned tree: {tuned.plan.verdict}")
    return tuning_figures(tuned, saved=bool(tuned.drafting), job_id=context.job_id)
