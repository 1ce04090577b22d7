"""`speculoos replay`: evaluates drafts on recorded responses of a model, without the model."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands.evaluate import row_ids
from cli.commands.fields import EstimateOnly, request_options, show_estimate
from cli.commands.targets import DeviceOption, dataset, is_folder, load_target, resolve
from cli.console import Json, figures, finish, say
from ops.homes import open_home
from speculoos.errors import BadInput, NotFound
from speculoos.reporting import ConsoleReporter
from tracking import evaluations
from tracking.db import writing
from workers.jobs.arguments import parse_settings
from workers.jobs.requests import ReplayRequest

app = typer.Typer(no_args_is_help=True, help="Evaluate drafts on recorded responses.")
NGRAM = "ngram"
PRINTED = (
    "mean_accepted_length",
    "mean_accepted_length_interval",
    "acceptance_by_depth",
    "prompts",
    "tokens",
    "projected_speedup",
    "projected_tokens_per_second",
    "chats",
)


@app.command("run")
@request_options(ReplayRequest, "show")
def run_draft(
    file: Annotated[Path, typer.Argument(help="Recorded responses: a file, or the folder or name of a dataset.")],
    draft: Annotated[str, typer.Option(help="BASE@DRAFT, the folder of a small model, or ngram.")],
    model: Annotated[str, typer.Option(help="Base model whose tokenizer encodes the responses; for ngram.")] = "",
    drafting: Annotated[
        list[str] | None, typer.Option("--set", help="Draft option as key=value, such as depth=5.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Max responses.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=2, help="Max tokens per response to evaluate.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Prompts are text to complete, not chat messages.")] = False,
    machine: Annotated[Path | None, typer.Option(help="File with costs of the target machine.")] = None,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Store the result as an evaluation.")] = True,
    device: DeviceOption = "",
    estimate: EstimateOnly = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Evaluate a draft on recorded responses: τ and the projected speed. The base model is needed only for drafts that
    read its hidden states."""
    settings = open_home()
    if estimate:
        ids = row_ids(settings, draft, "", str(file))
        if not ids["checkpoint_id"]:
            raise BadInput(f"--estimate needs a trained draft as --draft BASE@DRAFT, got {draft!r}.")
        return show_estimate(settings, ReplayRequest(**ids, limit=limit or sys.maxsize), as_json)

    from corpus.recordings import read_recordings
    from evaluation.costs import read_costs
    from evaluation.replay import playground_answer, project_times, replay, replay_metrics

    file, name = find_recordings(settings, file)
    costs = read_costs(machine) if machine else None
    drafting = parse_settings(drafting or ())
    ref = None if draft == NGRAM or is_folder(draft) else resolve(settings, draft)
    recordings = read_recordings(file, limit, raw)
    opened = _open(settings, draft, ref, model, drafting, device or settings.device)
    replayed = replay(recordings, opened.target, opened.new_drafter, ConsoleReporter(), limit, max_tokens)
    costs = costs or opened.costs()
    replayed, speed = project_times(replayed, costs) if costs else (replayed, {})
    tokenizer = opened.target.base.tokenizer
    result = replay_metrics(replayed, tokenizer) | speed
    result["replayed"] = {"file": name, "rows": len(replayed.rows), "drafting": drafting, "draft": draft}
    if ref is not None and ref.base_id and keep:
        config = {"replay": name, "drafting": drafting}
        answers = [playground_answer(row, tokenizer, name) for row in replayed.rows[: options["show"]]]
        with writing(settings) as session:
            stored = (f"{ref.name} on {name}", ref.base_id, ref.checkpoint_id, config, result)
            row = evaluations.save_evaluation(session, *stored)
            runs = evaluations.save_responses(session, ref.name, answers)
            result["evaluation_id"] = row.id
            result["chats"] = [f"/playground?chat={run.group_id}" for run in runs]
    return finish(result, as_json, figures({key: result[key] for key in PRINTED if result.get(key) not in (None, [])}))


def find_recordings(settings: Any, file: Path) -> tuple[Path, str]:
    """(path, name) of recorded responses: a file or folder, or a dataset of this home. Raises BadInput."""
    if file.expanduser().exists():
        return file.expanduser(), file.name
    try:
        return dataset(settings, str(file))
    except NotFound:
        raise BadInput(f"{file}: there is no file or dataset with this name.") from None


def _open(settings: Any, draft: str, ref: Any, model: str, drafting: dict[str, Any], device: str) -> Any:
    """The draft with a target model that replays the recording. `ref` is None if the draft is not a checkpoint."""
    from evaluation.replay import open_prompt_lookup, open_small_model, open_with_base

    if ref is None and draft != NGRAM:
        return open_small_model(Path(draft).expanduser(), drafting, settings.dtype, device)
    if ref is None:
        if not model:
            raise BadInput("--draft ngram: name the base model with --model, whose tokenizer encodes the responses.")
        return open_prompt_lookup(Path(resolve(settings, model).base_path), drafting)
    if not ref.checkpoint_path:
        raise BadInput(f"--draft {draft}: expected BASE@DRAFT, got a base model.")
    base, loaded = load_target(settings, ref, device)
    for notice in getattr(loaded, "notices", ()):
        say(notice)
    return open_with_base(base, loaded, drafting)
