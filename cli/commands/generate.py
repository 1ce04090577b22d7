"""speculoos generate: one prompt, answered in this process by the project's own engine."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.console import Json, finish, say
from speculoos.files import new_file

Model = Annotated[str, typer.Option(help="Base model: a name, BASE@CHECKPOINT, or a folder.")]
CheckpointOption = Annotated[str, typer.Option(help="Checkpoint that drafts: a name or a folder.")]
Draft = Annotated[
    list[str] | None,
    typer.Option("--draft", help='Drafting option as key=value, such as drafter=ngram, depth=5 or tree="chain 4".'),
]


def generate(
    model: Model,
    prompt: Annotated[str, typer.Option(help="One user turn, put through the chat template; - reads it from stdin.")],
    checkpoint: CheckpointOption = "",
    system: Annotated[str, typer.Option(help="System prompt.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="Most new tokens.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample among the likeliest that hold this much of the mass.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Sample among the k likeliest; 0 means all.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Same seed, same tokens.")] = None,
    acceptance: Annotated[str, typer.Option(help="exact, or typical (lossy).")] = "exact",
    draft: Draft = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; default SPECULOOS_DEVICE.")] = "",
    trace: Annotated[
        Path | None, typer.Option(help="File for what was drafted and accepted: a step record a line, as JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Answer a prompt; greedy unless a temperature is given."""
    from cli.commands.targets import load_target, resolve
    from decoding.config import GenerateConfig
    from decoding.drafters import make_drafter
    from decoding.generate import generate as run
    from decoding.target import fast_target
    from decoding.text import TextStream
    from models.chat import render
    from models.methods import trees
    from ops.homes import open_home
    from workers.jobs.parsing import parse_settings

    config = GenerateConfig(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, acceptance=acceptance
    )
    settings = open_home()
    ref = resolve(settings, model, checkpoint)
    text = sys.stdin.read() if prompt == "-" else prompt
    drafting = trees.read_options(parse_settings(draft or ()))
    base, loaded = load_target(settings, ref, device or settings.device)
    for notice in getattr(loaded, "notices", ()):
        say(notice)
    if acceptance == "typical" and temperature == 0:
        say("--acceptance typical has no effect at temperature 0; set --temperature to sample.")
    target, stream = fast_target(base), TextStream(base.tokenizer)
    drafter = make_drafter(target, loaded, drafting)
    prompt_ids = render(base.tokenizer, [{"role": "user", "content": text}], system)
    steps, records = _recorded(run(target, drafter, prompt_ids, config), stream, not as_json)
    if trace is not None:
        with new_file(trace) as lines:
            lines.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    answer = _answer(ref.name, target, steps, records, stream.text)
    finish(answer, as_json, _line(answer))


def _recorded(steps: Iterator[Any], stream: Any, show: bool) -> tuple[list[Any], list[dict[str, Any]]]:
    """(the steps, their records); with `show` the text is printed as it comes."""
    made, records = [], []
    for step in steps:
        made.append(step)
        records.append(stream.record(step))
        if show:
            print("".join(token["text"] for token in records[-1]["tokens"]), end="", flush=True)
    if show:
        print()
    return made, records


def _answer(model: str, target: Any, steps: list[Any], records: list[dict[str, Any]], text: str) -> dict[str, Any]:
    """The result object of `speculoos generate`."""
    from decoding.stats import summarize

    summary = summarize(steps)
    return {
        **{"model": model, "token_ids": [t.id for s in steps for t in s.tokens], "text": text},
        **{"tokens": list(_tokens(records)), "mean_accepted_length": summary.mean_accepted_length},
        **{"tokens_per_second": summary.tokens_per_second, "finish": summary.finish},
        **{"device": str(target.base.device), "acceptance_by_depth": list(summary.acceptance_by_depth)},
        "notice": target.notice,
    }


def _tokens(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for record in records:
        for token in record["tokens"]:
            yield {"id": token["id"], "text": token["text"], "origin": token["origin"], "depth": token["depth"]}


def _line(answer: dict[str, Any]) -> str:
    return (
        f"[{len(answer['token_ids'])} tokens, {answer['tokens_per_second']:.1f} tokens/s, "
        f"{answer['mean_accepted_length']:.2f} tokens a verification, {answer['finish']}]"
    )
