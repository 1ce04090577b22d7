"""A training with the evaluation that follows it by itself. No torch here."""

from speculoos.settings import Settings, load
from tracking.tables import Job
from workers.ask.requests import Evaluate, Train
from workers.ask.submit import submit


def submit_training(
    request: Train,
    *,
    measure: bool,
    name: str = "",
    experiment: str | None = None,
    user: str = "",
    settings: Settings | None = None,
) -> list[Job]:
    """Submit the training and, to `measure`, an evaluation of its checkpoint on the built-in questions."""
    common = {"experiment": experiment, "user": user, "settings": settings or load()}
    training = submit(request, name=name, **common)
    if not measure:
        return [training]
    made = Evaluate(base_id=request.base_id, checkpoint_id=training.request["checkpoint_id"])
    return [training, submit(made, **common)]
