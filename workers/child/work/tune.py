"""Job `tune`: finds the fastest tree of a checkpoint on this device. The figures are stored in the checkpoint's row, a
tree that is faster also in its files. A killed attempt measures again."""

from pathlib import Path
from typing import Any

from evaluation.tuning import TunedDraft, can_be_tuned, tune
from models.checkpoints import update_draft_config
from speculoos.errors import Unsupported
from speculoos.files import total_bytes
from tracking.tables import Checkpoint, now
from workers.child.context import JobContext
from workers.child.work.devices import load_models
from workers.child.work.questions import asked_questions
from workers.jobs.requests import Tune


def run(request: Tune, context: JobContext) -> dict[str, Any]:
    """Tune and store the result."""
    questions = asked_questions(request, context, last=True)  # evaluations use the first ones
    loaded = load_models(context, request.base_id, request.checkpoint_id, request.dtype)
    if not can_be_tuned(loaded.draft):
        raise Unsupported(f"Drafts of the method {loaded.draft.method} have no tree to tune.")
    context.log(f"Tuning on {loaded.device} in {loaded.dtype} with {len(questions)} questions.")
    tuned = tune(loaded.base, loaded.draft, questions, context, max_tokens=request.max_tokens, counts=True)
    context.log(tuned.plan.verdict)
    folder = Path(loaded.checkpoint.path)
    kept = request.keep and bool(tuned.drafting) and _is_in_home(folder, context)
    if kept:
        _save(request.checkpoint_id, folder, tuned, context)
    elif request.keep and tuned.drafting:
        context.log("The tree is not saved, because the checkpoint's files are outside the home folder.", "warning")
    figures = figures_of(tuned, kept, context.job_id)
    context.add_figures(request.checkpoint_id, figures)
    return {"checkpoint_id": request.checkpoint_id, **figures["tuned"]}


def figures_of(tuned: TunedDraft, kept: bool, job_id: str) -> dict[str, Any]:
    """Tuning figures of a checkpoint's row: `tuning` is the verdict, `tuned` the numbers."""
    numbers = {**tuned.finding(), "kept": kept, "at": now().isoformat(timespec="seconds"), "job_id": job_id}
    return {"tuning": tuned.plan.verdict, "tuned": numbers}


def _is_in_home(folder: Path, context: JobContext) -> bool:
    """Whether the files lie in this home; those of the installation are shared and stay unchanged."""
    return folder.resolve().is_relative_to(context.settings.home.resolve())


def _save(checkpoint_id: str, folder: Path, tuned: TunedDraft, context: JobContext) -> None:
    """Write the tree to the checkpoint's config.json (replaces its folder), unless this attempt is outdated."""
    context.check_owned()
    update_draft_config(folder, drafting=tuned.drafting, tuning=tuned.plan.to_json())
    context.publish(Checkpoint, checkpoint_id, path=str(folder), size_bytes=total_bytes(folder))
