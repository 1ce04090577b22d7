"""speculoos replay: a model's outputs recorded once, and drafts judged on them without it."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands.estimating import EstimateOnly, show_estimate
from cli.commands.fields import request_options
from cli.console import Json, figures, finish, say
from speculoos.errors import BadInput, NotFound
from speculoos.reporting import ConsoleReporter
from workers.jobs.requests import ReplayRequest

app = typer.Typer(no_args_is_help=True, help="Record a model's outputs; judge a draft on recorded ones.")
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; default SPECULOOS_DEVICE.")]
NGRAM = "ngram"
FLAT = (
    *("mean_accepted_length", "mean_accepted_length_interval", "acceptance_by_depth", "prompts", "tokens"),
    *("expected_accepted_length", "projected_speedup", "projected_tokens_per_second", "chats"),
)


@app.command("record")
def record_outputs(
    who: Annotated[str, typer.Argument(help="An endpoint of settings.toml, or a base model: its name or folder.")],
    output: Annotated[Path, typer.Option(help="File to write, a JSON line an answer.")],
    prompts: Annotated[str, typer.Option(help="Prompt file, or a data set's name; default the built-in set.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Most questions.")] = 20,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most new tokens a turn.")] = 128,
    logprobs: Annotated[int, typer.Option(min=0, max=20, help="Likeliest tokens to keep beside each token.")] = 0,
    endpoint_model: Annotated[str, typer.Option(help="Model to ask an endpoint for.")] = "",
    device: Device = "",
    as_json: Json = False,
) -> None:
    """Record greedy answers of a base, or of any OpenAI-compatible server, for `replay run`."""
    from cli.commands.evaluate import load_questions
    from cli.commands.targets import load_target, resolve
    from evaluation.record import answerer_of_base, answerer_of_endpoint, check_empty, record
    from ops.homes import open_home

    settings, path = open_home(), check_empty(output)
    questions = load_questions(settings, prompts, limit)
    if who in settings.endpoints:
        answer, at_once = answerer_of_endpoint(settings.endpoints[who], max_tokens, logprobs, endpoint_model)
    else:
        base, _ = load_target(settings, resolve(settings, who.partition("@")[0]), device or settings.device)
        answer, at_once = answerer_of_base(base, max_tokens, logprobs), 1
    rows = record(answer, questions, path, ConsoleReporter(), who, at_once)
    result = {"file": str(path), "model": who, "rows": rows}
    finish(result, as_json, f"{rows} answers in {path}")


@app.command("run")
@request_options(ReplayRequest, "show")
def run_draft(
    file: Annotated[Path, typer.Argument(help="Recorded outputs: a file, or a data set's folder or name.")],
    draft: Annotated[str, typer.Option(help="BASE@CHECKPOINT, a small model's folder, or ngram.")],
    model: Annotated[str, typer.Option(help="Base whose tokenizer reads the outputs; for ngram.")] = "",
    prompts: Annotated[Path | None, typer.Option(help="JSONL of prompts that goes with text of tensors.")] = None,
    drafting: Annotated[
        list[str] | None, typer.Option("--set", help="Drafting option as key=value, such as depth=5.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Most outputs.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=2, help="Tokens of each output that count.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Prompts are texts to go on with, not turns of a chat.")] = False,
    machine: Annotated[Path | None, typer.Option(help="Figures of the target's machine, for its speed.")] = None,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Store the figures as an evaluation.")] = True,
    device: Device = "",
    estimate: EstimateOnly = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Judge a draft on recorded outputs: τ, and the speed it would give; the target's model is needed only for drafts
    that look at its hidden states."""
    if estimate:
        return _estimated(file, draft, limit, as_json)

    from cli.commands.targets import is_folder, resolve
    from corpus.recordings import read_recordings
    from evaluation.costs import read_costs
    from evaluation.replay import project_times, replay, replay_figures
    from ops.homes import open_home
    from workers.jobs.parsing import parse_settings

    settings = open_home()
    file, name = find_recordings(settings, file)
    costs = read_costs(machine) if machine else None
    drafting = parse_settings(drafting or ())
    ref = None if draft == NGRAM or is_folder(draft) else resolve(settings, draft)
    recordings = read_recordings(file, prompts, limit, raw)
    opened = _open(settings, draft, ref, model, drafting, device or settings.device)
    done = replay(recordings, opened.target, opened.make, ConsoleReporter(), limit, max_tokens)
    costs = costs or opened.costs()
    done, speed = project_times(done, costs) if costs else (done, {})
    found = replay_figures(done, opened.target.base.tokenizer) | speed
    found["replayed"] = {"file": name, "rows": len(done.rows), "drafting": drafting, "draft": draft}
    if ref is not None and ref.base_id and keep:
        found |= _keep(settings, ref, found, done, opened.target.base.tokenizer, drafting, options["show"])
    return finish(found, as_json, figures({key: found[key] for key in FLAT if found.get(key) not in (None, [])}))


def _estimated(data: Path, draft: str, limit: int | None, as_json: bool) -> None:
    """What judging a checkpoint on a data set of this home would take."""
    from cli.commands.evaluate import served
    from ops.homes import open_home

    settings = open_home()
    found = served(settings, draft, "", str(data))
    if not found["checkpoint_id"]:
        raise BadInput(f"--estimate needs a checkpoint as --draft BASE@CHECKPOINT, got {draft!r}.")
    show_estimate(settings, ReplayRequest(**found, limit=limit or sys.maxsize), as_json)


def find_recordings(settings: Any, file: Path) -> tuple[Path, str]:
    """(where the outputs lie, what they are called): a file or folder, or a data set of this home. Raises BadInput."""
    from cli.commands.targets import dataset

    if file.expanduser().exists():
        return file.expanduser(), file.name
    try:
        return dataset(settings, str(file))
    except NotFound:
        raise BadInput(f"{file}: there is no such file, and no data set of this name.") from None


def _open(settings: Any, draft: str, ref: Any, model: str, drafting: dict[str, Any], device: str) -> Any:
    """The draft with a target that says what was recorded. `ref` is None where it is no checkpoint of a base."""
    from cli.commands.targets import load_target, resolve
    from evaluation.drafts import open_prompt_lookup, open_small_model, open_with_base

    if ref is None and draft != NGRAM:
        return open_small_model(Path(draft).expanduser(), drafting, settings.dtype, device)
    if ref is None:
        if not model:
            raise BadInput("--draft ngram: say with --model which base's tokenizer reads the outputs.")
        return open_prompt_lookup(Path(resolve(settings, model).base_path), drafting)
    if not ref.checkpoint_path:
        raise BadInput(f"--draft {draft}: names a base without a checkpoint; give BASE@CHECKPOINT.")
    base, loaded = load_target(settings, ref, device)
    for notice in getattr(loaded, "notices", ()):
        say(notice)
    return open_with_base(base, loaded, drafting)


def _keep(
    settings: Any, ref: Any, found: dict[str, Any], done: Any, tokenizer: Any, drafting: dict[str, Any], show: int
) -> dict[str, Any]:
    """Rows: the evaluation, and the first `save_responses` outputs as chats; (their addresses)."""
    from evaluation.replay import playground_answer
    from tracking import replays
    from tracking.db import writing

    source = found["replayed"]["file"]
    with writing(settings) as session:
        config = {"replay": source, "drafting": drafting}
        row = replays.save_evaluation(session, f"{ref.name} on {source}", ref.base_id, ref.checkpoint_id, config, found)
        runs = replays.save_responses(
            session, ref.name, [playground_answer(r, tokenizer, source) for r in done.rows[:show]]
        )
        return {"evaluation_id": row.id, "chats": [f"/playground?chat={run.group_id}" for run in runs]}
