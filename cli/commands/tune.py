"""`speculoos tune`: finds the tree with the most tokens per second for a checkpoint, in a job."""

from typing import Annotated, Any

import typer

from cli.commands.fields import EstimateOnly, request_options, show_estimate
from cli.console import Json, finish, table
from models.methods.trees import NOT_SAVED
from ops.homes import open_home
from speculoos.errors import BadInput
from tracking import queries
from tracking.db import reading
from workers.jobs.requests import Tune


@request_options(Tune)
def tune(
    model: Annotated[str, typer.Argument(help="BASE@DRAFT.")],
    questions: Annotated[str, typer.Option(help="Name of a dataset; default: the end of the built-in set.")] = "",
    estimate: EstimateOnly = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Find the fastest tree on this machine, and whether plain decoding is faster than every tree."""
    from cli.follow import run_request

    settings = open_home()
    with reading(settings) as session:
        base, draft = queries.find_model(session, model)
        if draft is None:
            raise BadInput(f"{model}: expected BASE@DRAFT, got a base model.")
        data = queries.find_dataset(session, questions).id if questions else ""
    request = Tune(base_id=base.id, checkpoint_id=draft.id, dataset_id=data, **options)
    if estimate:
        return show_estimate(settings, request, as_json)
    job = run_request(settings, request)
    sizes = [(nodes, f"{tau:.2f}", f"{speedup:.2f} ×") for nodes, tau, speedup in job.result["sizes"]]
    heads = ("nodes", "expected τ", "expected speedup")
    parts = (table(sizes, heads), job.result["verdict"], job.result.get("busy"), NOT_SAVED * (not job.result["kept"]))
    return finish({"model": model, **job.result}, as_json, "\n\n".join(filter(None, parts)))
