"""Job `train`: a draft for a base model. Each attempt writes under its own folder and goes on from the last state."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from methods.recipes import config_for
from models.checkpoints import WEIGHTS
from speculoos.sums import file_sha256
from tracking.changes import size
from tracking.tables import Base, Checkpoint, Dataset
from training.loop import TrainResult, train
from training.resume_points import latest_resume_point, whole_resume_point
from workers.ask.checks import require_method
from workers.ask.requests import Train
from workers.child.context import Context
from workers.child.work.devices import take_device

TUNING_QUESTIONS = 6
"""Of the built-in set, from its end: evaluations take them from its start."""


def run(request: Train, context: Context) -> dict[str, Any]:
    """Train, publish the checkpoint's row, and remove what earlier attempts left."""
    base = context.usable(Base, request.base_id)
    dataset = context.usable(Dataset, request.dataset_id)
    require_method(base, request.method)
    config = config_for(request.method, request.recipe, {"device": context.settings.device, **request.settings})
    folder = context.checkpoint_folder(request.checkpoint_id)
    earlier = context.earlier_attempts(request.checkpoint_id)
    resume = resume_from((folder, *earlier), context)
    take_device(context)
    info = {"base": base.name, "base_sha256": base.weights_sha256, "dataset": dataset.name}
    known = context.known(base)
    result = train(config, base.path, dataset.path, folder, resume, context, info, known, context.sums)
    context.progress(result.step, result.step, "steps")  # also where an attempt resumed at the last step
    publish(context, request.checkpoint_id, base, result)
    figures = {**result.figures, "tuning": tune_tree(context, base, config.device, result.folder)}
    publish(context, request.checkpoint_id, base, replace(result, figures=figures))
    for path in earlier:
        shutil.rmtree(path, ignore_errors=True)
    return {"checkpoint_id": request.checkpoint_id, "step": result.step, **result.figures}


def resume_from(folders: tuple[Path, ...], context: Context) -> Path | None:
    """The newest whole state of this job's attempts, the latest attempt first; the log says what was passed over."""
    state = whole_resume_point(folders, lambda said: context.log(said, "warning"))
    if state is None and any(latest_resume_point(folder) for folder in folders):
        context.log("No whole state is left, so the training starts from the beginning.", "warning")
    return state


def tune_tree(context: Context, base: Base, device: str, folder: Path) -> str:
    """Find the tree that is fastest on this machine and keep it with the checkpoint; returns the finding in words."""
    from evaluation.questions import built_in
    from evaluation.tuning import can_be_tuned, tune
    from models.base import decoding_dtype, load_base
    from models.checkpoints import load_draft, set_drafting

    context.log("Looking for the tree that gives the most tokens per second on this machine.")
    dtype = decoding_dtype(context.settings.dtype, device)
    loaded = load_base(base.path, dtype, device, context.known(base), context.sums)
    draft = load_draft(folder, loaded, base.weights_sha256, sums=context.sums)
    if not can_be_tuned(draft):
        return ""
    tuned = tune(loaded, draft, built_in()[-TUNING_QUESTIONS:], context)
    set_drafting(folder, tuned.drafting, tuned.plan.to_json())
    context.log(f"Tuned tree: {tuned.plan.verdict}")
    return tuned.plan.verdict


def publish(context: Context, checkpoint_id: str, base: Base, result: TrainResult) -> None:
    """Fill the checkpoint's row from the files, fenced."""
    folder = Path(result.folder)
    context.publish(
        Checkpoint,
        checkpoint_id,
        state="ready",
        path=str(folder),
        attempt=context.attempt,
        step=result.step,
        base_sha256=base.weights_sha256,
        size_bytes=size(folder),
        sha256=file_sha256(folder / WEIGHTS),
        figures=result.figures,
    )
