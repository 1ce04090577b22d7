"""The quickstart: prompts → answers → Medusa heads → evaluation, as four jobs of one experiment. No torch.

The Home page's button and `speculoos quickstart` submit it; `result` reads the figures.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from models.methods import SETTINGS
from models.methods.recipes import load_recipe
from ops.starter import ensure_starter
from speculoos.errors import Conflict, NotFound
from speculoos.settings import Settings
from tracking import db, jobs, queries
from tracking.names import STARTER
from tracking.tables import Base, Checkpoint, Evaluation
from workers.jobs.builtin import PROMPTS
from workers.jobs.requests import Evaluate, GenerateData, Train
from workers.jobs.submit import add_built_in, submit

RECIPE = "quickstart"
HEADS_NAME = "quickstart"
STORE = "quickstart"  # stores the hidden states during generation, so that the training does not run the base again
ANSWERS = {"max_tokens": 144, "batch_size": 64, "max_minutes": 3.7, "hidden_states_store": STORE}
QUESTIONS = {"limit": 24, "max_tokens": 96}


@dataclass(frozen=True)
class Chain:
    """The jobs of a quickstart in order, and the ids of their outputs."""

    experiment: str
    job_ids: tuple[str, ...]
    base_id: str
    checkpoint_id: str
    evaluation_id: str


def submit_quickstart(settings: Settings, base: str = STARTER, limit: int | None = None, user: str = "") -> Chain:
    """Submit the chain on `base` with the first `limit` prompts. Raises NotFound without the starter model."""
    with db.writing(settings) as session:
        if base == STARTER and ensure_starter(session, settings) is None:
            raise NotFound("The starter model is not installed.", "Run `make install`.")
        row = queries.find_base(session, base)
        queries.must_be_ready(row)
    experiment = f"quickstart {datetime.now():%Y-%m-%d %H:%M:%S}"
    recipe = load_recipe(RECIPE)
    common: dict[str, Any] = {"experiment": experiment, "settings": settings, "user": user}
    prompts_id, importing = add_built_in(PROMPTS, **common)  # imported once, reused by later quickstarts
    answers = submit(GenerateData(source_id=prompts_id, base_id=row.id, limit=limit, **ANSWERS), **common)
    changes = {k: v for k, v in recipe.items() if k != "method"} | _reduced_sizes(row, recipe)
    changes["hidden_states_store"] = STORE
    training = Train(
        method=recipe["method"], base_id=row.id, dataset_id=answers.request["dataset_id"], settings=changes
    )
    trained = submit(training, like=HEADS_NAME, **common)
    checkpoint_id = trained.request["checkpoint_id"]
    evaluated = submit(Evaluate(base_id=row.id, checkpoint_id=checkpoint_id, **QUESTIONS), **common)
    job_ids = tuple(job.id for job in (importing, answers, trained, evaluated) if job)
    return Chain(experiment, job_ids, row.id, checkpoint_id, evaluated.request["evaluation_id"])


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


def _reduced_sizes(base: Base, recipe: dict[str, Any]) -> dict[str, Any]:
    sizes = {"max_length": base.card.get("max_length"), "draft_vocab_size": base.card.get("vocabulary")}
    values = {"max_length": SETTINGS["max_length"].default, **recipe}
    return {key: int(size) for key, size in sizes.items() if size and size < values.get(key, 0)}
