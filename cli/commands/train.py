"""`speculoos train`: trains a draft for a base model, with the settings of a method or a recipe."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from cli.commands.fields import EstimateOnly, request_options, show_estimate
from cli.console import Json, Wait, figures, finish, say
from formats.refusals import no_server_reason
from models.methods import METHODS, train_config
from models.methods.recipes import is_built_in, list_recipes, load_recipe
from models.methods.settings import settings_of
from ops.homes import open_home
from speculoos.errors import BadInput
from speculoos.people import current_user
from tracking import queries
from tracking.db import reading
from tracking.reports import last_metrics
from workers.jobs.arguments import parse_settings
from workers.jobs.requests import Train


class TrainCommand(TyperCommand):
    """A command whose help lists the recipes, or for `train METHOD --help` all settings of that method or recipe."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Store the arguments for the help, which is printed before they are parsed."""
        ctx.meta["arguments"] = list(args)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Help below the options."""
        recipes = {recipe.name: recipe for recipe in list_recipes()}
        what = next((name for name in ctx.meta["arguments"] if name in METHODS or name in recipes), "")
        if not what:
            with formatter.section("Recipes"):
                formatter.write_dl([(name, f"{each.method}: {each.about}") for name, each in recipes.items()])
            formatter.write_paragraph()
            formatter.write_text("`speculoos train METHOD --help`, or a recipe's name, lists all settings for --set.")
            return
        config = recipes[what].config() if what in recipes else train_config(what)
        with formatter.section(f"Settings of {what}, for --set key=value"):
            formatter.write_dl(list(settings_help(config)))


def settings_help(config: Any) -> Iterable[tuple[str, str]]:
    """(key=value, help and bounds) of every setting, with the values of `config`."""
    for each in settings_of(type(config)):
        value = getattr(config, each.name)
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)
        bounds = each.expected + (f", {each.range}" if each.low is not None else "")
        yield f"{each.name}={shown.lower() if isinstance(value, bool) else shown}", f"{each.help} [{bounds}]"


@request_options(Train)
def train(
    what: Annotated[str, typer.Argument(help=f"Method ({', '.join(METHODS)}), or name or file of a recipe.")],
    model: Annotated[str, typer.Option(help="Base model of the draft.")],
    data: Annotated[list[str], typer.Option(help="Dataset of conversations; may be repeated.")],
    name: Annotated[str, typer.Option(help="Name of the new draft.")] = "",
    experiment: Annotated[str, typer.Option(help="Experiment of the job; created if it does not exist.")] = "",
    settings: Annotated[list[str] | None, typer.Option("--set", help="Setting as key=value; may be repeated.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Evaluate on the built-in prompts afterwards.")] = False,
    estimate: EstimateOnly = False,
    wait: Wait = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Train a draft; the base model stays frozen. `train METHOD --help` lists the settings of a method."""
    from cli.follow import run_jobs
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
    choices = {"measure": measure, "name": name, "experiment": experiment.strip() or None, "user": current_user()}
    job, *_ = run_jobs(home, lambda: submit_training(request, settings=home, **choices), "gpu", wait=wait)
    with reading(home) as session:
        row = queries.find_checkpoint(session, job.request["checkpoint_id"])
        metrics = last_metrics(session, job.id)
    result = {"checkpoint": f"{model}@{row.name}", "job": job.id, "job_state": job.state, "metrics": metrics}
    result |= {key: getattr(row, key) for key in ("name", "id", "state", "path", "step")}
    return finish({**result, "settings": row.config}, as_json, figures(result))


def make_request(
    what: str, base_id: str, dataset_ids: list[str], changes: dict[str, Any], *, recipe: str = "", **options: Any
) -> Train:
    """The Train request with the recipe's settings, overridden by `changes`. Raises BadInput for invalid settings."""
    if what not in METHODS:
        recipe, what = what, ""
    start = load_recipe(recipe) if recipe else {}
    settings = {**start, **({"method": what} if what else {}), **changes}
    config = train_config(**settings)
    if unknown := [name for name in changes if name not in type(config).model_fields]:
        raise BadInput(
            f"--set {unknown[0]}: {config.method} has no such setting; see `speculoos train {config.method} --help`."
        )
    stored = changes if is_built_in(recipe) else settings  # the job reads a built-in recipe again
    values = {key: value for key, value in config.to_json().items() if key in stored and key != "method"}
    first, *more = dataset_ids
    ids = {"base_id": base_id, "dataset_id": first, "more_dataset_ids": more}
    return Train(method=config.method, **ids, settings=values, recipe=recipe, **options)
