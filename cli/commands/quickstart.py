"""`speculoos quickstart`: from prompts to a measured EAGLE-3 draft for the starter model, in minutes."""

import shlex
from typing import Annotated

import typer

from cli.console import Json, figures, finish, say
from ops.homes import open_home
from speculoos.people import current_user


def quickstart(
    model: Annotated[str, typer.Option(help="Base model.")] = "starter",
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first prompts; default: all.")] = None,
    as_json: Json = False,
) -> None:
    """Import prompts, generate responses, train, evaluate and export an EAGLE-3 draft: five jobs."""
    from cli.follow import follow
    from cli.launch.services import Services, programs_for
    from workers.jobs.guided import result, submit_quickstart

    settings = open_home()
    with Services(settings, programs_for("io", "gpu")) as services:
        chain = submit_quickstart(settings, model, limit, current_user())
        for job_id in chain.job_ids:
            follow(settings, job_id, services)
    outcome = result(settings, chain)
    model = shlex.quote(outcome["checkpoint"])
    say(f"Chat with it in the Playground: `speculoos up`, or `speculoos generate --model {model} …`.")
    finish(outcome, as_json, figures({k: v for k, v in outcome.items() if not isinstance(v, list | dict)}))
