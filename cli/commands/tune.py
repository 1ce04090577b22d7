"""speculoos tune: the tree with which a checkpoint gives the most tokens a second here, found by a job."""

from typing import Annotated

import typer

from cli.commands.estimating import EstimateOnly, show_estimate
from cli.console import Json, finish, table
from models.methods.trees import NOT_KEPT
from speculoos.errors import BadInput
from speculoos.settings import DTYPES


def tune(
    model: Annotated[str, typer.Argument(help="BASE@CHECKPOINT.")],
    questions: Annotated[str, typer.Option(help="A data set's name; default the end of the built-in set.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Most questions.")] = 6,
    max_tokens: Annotated[int, typer.Option(min=8, help="Most new tokens of an answer.")] = 48,
    dtype: Annotated[str, typer.Option(help="Precision of base and draft; default SPECULOOS_DTYPE.")] = "",
    keep: Annotated[bool, typer.Option(help="Draft with the tree from now on, where it pays.")] = True,
    estimate: EstimateOnly = False,
    as_json: Json = False,
) -> None:
    """Find the tree that is fastest on this machine, and whether plain decoding is faster than any."""
    from cli.follow import run_request
    from ops.homes import open_home
    from tracking import queries
    from tracking.db import reading
    from workers.ask.requests import Tune

    if dtype and dtype not in DTYPES:
        raise BadInput(f"--dtype {dtype}: expected one of {', '.join(DTYPES)}.")
    settings = open_home()
    with reading(settings) as session:
        base, draft = queries.find_model(session, model)
        if draft is None:
            raise BadInput(f"{model}: name the draft too, as BASE@CHECKPOINT.")
        data = queries.find_dataset(session, questions).id if questions else ""
    request = Tune(base.id, draft.id, data, limit, max_tokens, dtype, keep)
    if estimate:
        return show_estimate(settings, request, as_json)
    job = run_request(settings, request)
    sizes = [(nodes, f"{tau:.2f}", f"{speedup:.2f} ×") for nodes, tau, speedup in job.result["sizes"]]
    heads = ("nodes", "expected τ", "expected speedup")
    said = (table(sizes, heads), job.result["verdict"], job.result.get("busy"), NOT_KEPT * (not job.result["kept"]))
    return finish({"model": model, **job.result}, as_json, "\n\n".join(filter(None, said)))
