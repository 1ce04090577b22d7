"""Guided runs: prompts → responses → draft → evaluation → export, as the jobs of one experiment. No torch.

The page `app/pages/guided.py` and `speculoos quickstart` submit them; `result` reads the figures.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from formats.servers import VLLM
from models.methods import SETTINGS
from models.methods.recipes import read_recipe
from ops.starter import ensure_starter
from speculoos.errors import BadInput, Conflict, NotFound
from speculoos.settings import Settings
from tracking import db, jobs, queries
from tracking.names import STARTER
from tracking.tables import Base, Checkpoint, Evaluation
from workers.jobs.builtin import PROMPTS
from workers.jobs.requests import Evaluate, Export, GenerateData, ImportPrompts, Train
from workers.jobs.submit import add_built_in, submit

EXPERIMENT = "guided run "
"""Start of the name of a guided run's experiment."""
QUICKSTART_MINUTES = 8
BUDGETS = {"8 minutes": QUICKSTART_MINUTES, "30 minutes": 30, "2 hours": 120, "8 hours": 480}
"""Time budget → minutes."""
SHORT = 15
"""Minutes up to which a run generates short responses and asks short questions."""
STARTING = 1.5
"""Minutes outside the limits of the jobs: starts, the last evaluation of a training, the last question, the export."""
GENERATING, TRAINING, EVALUATING = 0.42, 0.34, 0.11
"""Shares of the other minutes. The tuning of the tree takes the rest."""
HEADS_NAME = "guided"
EXPORTED_LAYERS = 7
"""Layers that a base model needs for an export of EAGLE-3: with fewer, the three default layers are not distinct."""
SHORT_ANSWERS = {"max_tokens": 144, "batch_size": 64}
SHORT_QUESTIONS = {"limit": 24, "max_tokens": 96}
RECIPES = ("eagle3-quickstart", "eagle3-standard")
"""Recipes of short and of longer runs."""


@dataclass(frozen=True)
class Chain:
    """The jobs of a guided run in order, and the ids of their outputs."""

    experiment: str
    experiment_id: str
    job_ids: tuple[str, ...]
    base_id: str
    checkpoint_id: str
    evaluation_id: str


def submit_guided(
    settings: Settings,
    base_id: str,
    prompts: str | ImportPrompts,
    minutes: float = QUICKSTART_MINUTES,
    limit: int | None = None,
    user: str = "",
) -> Chain:
    """Submit the jobs for the base model `base_id`.

    Args:
        prompts: id of a prompt set, name of a built-in one, or a request that imports a file.
        minutes: time budget of the whole run; the first job of a model or a file is not included.
        limit: number of prompts to use, all by default.
    """
    with db.reading(settings) as session:
        base = session.get(Base, base_id or "")
        if base is None or base.state == "failed":
            raise BadInput("Base model: choose one, or add one on Models.")
    is_short = minutes <= SHORT
    experiment = f"{EXPERIMENT}{base.name} {datetime.now():%Y-%m-%d %H:%M:%S}"
    common: dict[str, Any] = {"experiment": experiment, "settings": settings, "user": user}
    prompts_id, importing = _prompts(prompts, common)
    answers = {"max_minutes": _share(GENERATING, minutes), **(SHORT_ANSWERS if is_short else {})}
    generated = submit(GenerateData(source_id=prompts_id, base_id=base_id, limit=limit, **answers), **common)
    training = _training(base, generated.request["dataset_id"], minutes)
    trained = submit(training, like=HEADS_NAME, **common)
    checkpoint_id = trained.request["checkpoint_id"]
    questions = {"max_minutes": _share(EVALUATING, minutes), **(SHORT_QUESTIONS if is_short else {})}
    evaluation = Evaluate(base_id=base_id, checkpoint_id=checkpoint_id, **questions)
    evaluated = submit(evaluation, **common)
    export = Export(checkpoint_id=checkpoint_id, format=VLLM.name)  # after the evaluation: its README has the figures
    exported = submit(export, after=evaluated, **common) if can_export(base) else None
    job_ids = tuple(job.id for job in (importing, generated, trained, evaluated, exported) if job)
    return Chain(
        experiment, evaluated.experiment_id, job_ids, base_id, checkpoint_id, evaluated.request["evaluation_id"]
    )


def can_export(base: Base) -> bool:
    """Whether servers can load EAGLE-3 drafts of the base model."""
    return (base.card or {}).get("layers", EXPORTED_LAYERS) >= EXPORTED_LAYERS


def submit_quickstart(settings: Settings, base: str = STARTER, limit: int | None = None, user: str = "") -> Chain:
    """The guided run of `base` with the first `limit` built-in prompts. Raises NotFound without the starter model."""
    with db.writing(settings) as session:
        if base == STARTER and ensure_starter(session, settings) is None:
            raise NotFound("The starter model is not installed.", "Run `make install`.")
        row = queries.find_base(session, base)
        queries.must_be_ready(row)
    return submit_guided(settings, row.id, PROMPTS, limit=limit, user=user)


def result(settings: Settings, chain: Chain) -> dict[str, Any]:
    """The figures that `speculoos quickstart --json` prints. Raises Conflict until the last job SUCCEEDED."""
    with db.reading(settings) as session:
        last = jobs.get(session, chain.job_ids[-1])
        if last.state != "SUCCEEDED":
            raise Conflict(f"The quickstart has not finished: “{last.name}” is {last.state.lower()}.")
        checkpoint = session.get_one(Checkpoint, chain.checkpoint_id)
        figures = session.get_one(Evaluation, chain.evaluation_id).result
        model = queries.model_name(session, chain.base_id, checkpoint.id)
    return {"checkpoint": model, "path": checkpoint.path, "experiment": chain.experiment, **figures}


def _prompts(prompts: str | ImportPrompts, common: dict[str, Any]) -> tuple[str, Any]:
    """(id of the prompt set, job that imports it or None)."""
    if isinstance(prompts, ImportPrompts):
        job = submit(prompts, **common)
        return job.request["dataset_id"], job
    return add_built_in(prompts, **common) if prompts == PROMPTS else (prompts, None)


def _share(share: float, budget: float) -> float:
    """Minutes of one job."""
    return round(share * (budget - STARTING), 1)


def _training(base: Base, dataset_id: str, minutes: float) -> Train:
    recipe = read_recipe(RECIPES[minutes > SHORT])
    changes = {"max_minutes": _share(TRAINING, minutes)}
    if minutes > SHORT:
        changes |= {"epochs": 0}  # until the time is over
    else:
        changes |= _reduced_sizes(base, recipe.settings)
    request = {"method": recipe.method, "recipe": recipe.name, "settings": changes}
    return Train(base_id=base.id, dataset_id=dataset_id, **request)


def _reduced_sizes(base: Base, settings: dict[str, Any]) -> dict[str, Any]:
    """Sizes of the recipe that exceed those of the base model."""
    card = base.card or {}
    sizes = {"max_length": card.get("max_length"), "draft_vocab_size": card.get("vocabulary")}
    values = {"max_length": SETTINGS["max_length"].default, **settings}
    return {key: int(size) for key, size in sizes.items() if size and size < values.get(key, 0)}
