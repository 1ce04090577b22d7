"""Job `tune`: the tree with which a checkpoint is fastest on this device. The finding goes into the checkpoint's row,
the tree, where it pays, into its files. Nothing is half done: a killed attempt's measurement is made again."""

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
    """Tune, and keep what was found."""
    questions = asked_questions(request, context, last=True)  # evaluations take the first ones
    loaded = load_models(context, request.base_id, request.checkpoint_id, request.dtype)
    if not can_be_tuned(loaded.draft):
        raise Unsupported(f"Drafts of the method {loaded.draft.method} have nothing to tune.")
    context.log(f"Tuning on {loaded.device} in {loaded.dtype} with {len(questions)} questions.")
    tuned = tune(loaded.base, loaded.draft, questions, context, max_tokens=request.max_tokens, counts=True)
    context.log(tuned.plan.verdict)
    folder = Path(loaded.checkpoint.path)
    kept = request.keep and bool(tuned.drafting) and _is_ours(folder, context)
    if kept:
        _keep(request.checkpoint_id, folder, tuned, context)
    elif request.keep and tuned.drafting:
        context.log("The tree is not kept in the checkpoint's files: they lie outside the home.", "warning")
    figures = figures_of(tuned, kept, context.job_id)
    context.add_figures(request.checkpoint_id, figures)
    return {"checkpoint_id": request.checkpoint_id, **figures["tuned"]}


def figures_of(tuned: TunedDraft, kept: bool, job_id: str) -> dict[str, Any]:
    """What a checkpoint's row says of its tuning: `tuning` in words, `tuned` in numbers."""
    found = {**tuned.finding(), "kept": kept, "at": now().isoformat(timespec="seconds"), "job_id": job_id}
    return {"tuning": tuned.plan.verdict, "tuned": found}


def _is_ours(folder: Path, context: JobContext) -> bool:
    """Whether the files belong to this home; those that come with the installation belong to all."""
    return folder.resolve().is_relative_to(context.settings.home.resolve())


def _keep(checkpoint_id: str, folder: Path, tuned: TunedDraft, context: JobContext) -> None:
    """The tree in the checkpoint's config.json (its folder is replaced whole), unless this attempt is over."""
    with context.fenced():
        pass
    update_draft_config(folder, drafting=tuned.drafting, tuning=tuned.plan.to_json())
    context.publish(Checkpoint, checkpoint_id, path=str(folder), size_bytes=total_bytes(folder))
