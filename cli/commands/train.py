"""speculoos train: a draft for a base model, by a method's settings or a recipe."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from cli.commands.estimating import EstimateOnly, show_estimate
from cli.commands.fields import request_options
from cli.console import Json, Wait, figures, finish, say
from models.methods import METHODS, train_config
from speculoos.errors import BadInput
from workers.jobs.requests import Train


class TrainCommand(TyperCommand):
    """Whose help lists the recipes and, for `train METHOD --help`, every setting of that method or recipe."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words for the help, which is shown before arguments are read."""
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Below the options."""
        from models.methods.recipes import list_recipes

        recipes = {recipe.name: recipe for recipe in list_recipes()}
        what = next((word for word in ctx.meta["words"] if word in METHODS or word in recipes), "")
        if not what:
            with formatter.section("Recipes"):
                formatter.write_dl([(name, f"{each.method}: {each.about}") for name, each in recipes.items()])
            formatter.write_paragraph()
            formatter.write_text("`speculoos train METHOD --help`, or a recipe's name, lists all settings for --set.")
            return
        chosen = recipes[what].config() if what in recipes else train_config(what)
        with formatter.section(f"Settings of {what}, for --set key=value"):
            formatter.write_dl(list(settings_help(chosen)))


def settings_help(config: Any) -> Iterable[tuple[str, str]]:
    """(key=value, what it does and what it may be) of every setting; the value is the one `config` has."""
    from models.methods.settings import settings_of

    for each in settings_of(type(config)):
        value = getattr(config, each.name)
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)
        bounds = each.expected + (f", {each.range}" if each.low is not None else "")
        yield f"{each.name}={shown.lower() if isinstance(value, bool) else shown}", f"{each.help} [{bounds}]"


@request_options(Train)
def train(
    what: Annotated[str, typer.Argument(help=f"A method ({', '.join(METHODS)}), or a recipe's name or file.")],
    model: Annotated[str, typer.Option(help="Base model to draft for.")],
    data: Annotated[list[str], typer.Option(help="Data set of conversations; may be repeated.")],
    name: Annotated[str, typer.Option(help="Name of the new checkpoint.")] = "",
    experiment: Annotated[str, typer.Option(help="Experiment it belongs to, made if it is new.")] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting as key=value; may be repeated.")
    ] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Then evaluate it on the built-in questions.")] = False,
    estimate: EstimateOnly = False,
    wait: Wait = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Train a draft; the base stays frozen. `train METHOD --help` lists the method's settings."""
    from cli.follow import run_jobs
    from formats.refusals import no_server_reason
    from ops.homes import open_home
    from speculoos.people import current_user
    from tracking import queries
    from tracking.db import reading
    from tracking.reports import last_metrics
    from workers.jobs.parsing import parse_settings
    from workers.jobs.submit import submit_training

    home = open_home()
    with reading(home) as session:
        base = queries.find_base(session, model)
        base_id, base_path, dataset_ids = base.id, base.path, [queries.find_dataset(session, d).id for d in data]
    request = make_request(what, base_id, dataset_ids, parse_settings(settings or ()), **options)
    if unserved := no_server_reason(request.method, base_path):
        say(unserved)
    if estimate:
        return show_estimate(home, request, as_json)
    told = {"name": name, "experiment": experiment.strip() or None, "user": current_user(), "settings": home}
    job, *_ = run_jobs(home, lambda: submit_training(request, measure=measure, **told), "gpu", wait=wait)
    with reading(home) as session:
        row = queries.find_checkpoint(session, job.request["checkpoint_id"])
        metrics = last_metrics(session, job.id)
    fields = {"name": row.name, "id": row.id, "state": row.state, "path": row.path, "step": row.step}
    result = {"checkpoint": f"{model}@{row.name}", **fields, "job": job.id, "job_state": job.state, "metrics": metrics}
    return finish({**result, "settings": row.config}, as_json, figures(result))


def make_request(
    what: str, base_id: str, dataset_ids: list[str], changes: dict[str, Any], *, recipe: str = "", **options: Any
) -> Train:
    """The Train request: the recipe's settings, changed by `changes`, checked now rather than in the job."""
    from models.methods.recipes import is_built_in, load_recipe

    if what not in METHODS:
        recipe, what = what, ""
    start = load_recipe(recipe) if recipe else {}
    chosen = {**start, **({"method": what} if what else {}), **changes}
    config = train_config(**chosen)
    if foreign := [name for name in changes if name not in type(config).model_fields]:
        raise BadInput(
            f"--set {foreign[0]}: {config.method} has no such setting; see `speculoos train {config.method} --help`."
        )
    kept = changes if is_built_in(recipe) else chosen  # the job reads a built-in recipe again
    values = {key: value for key, value in config.to_json().items() if key in kept and key != "method"}
    first, *more = dataset_ids
    return Train(
        method=config.method,
        base_id=base_id,
        dataset_id=first,
        more_dataset_ids=more,
        settings=values,
        recipe=recipe,
        **options,
    )
