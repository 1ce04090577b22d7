"""speculoos generate: one prompt, answered in this process by the project's own engine."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from speculoos.console import Json, finish, say
from speculoos.files import new_file

Model = Annotated[str, typer.Option(help="Base model: a name, BASE@CHECKPOINT, or a folder.")]
CheckpointOption = Annotated[str, typer.Option(help="Checkpoint that drafts: a name or a folder.")]
Draft = Annotated[
    list[str] | None, typer.Option("--draft", help="Drafting option as key=value, such as drafter=ngram or depth=5.")
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
    from decoding.config import GenerateConfig
    from speculoos.commands.targets import resolve
    from upkeep.homes import open_home
    from workers.ask.command_line import parse_settings

    config = GenerateConfig(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, acceptance=acceptance
    )
    settings = open_home()
    ref = resolve(settings, model, checkpoint)
    text = sys.stdin.read() if prompt == "-" else prompt
    engine = Engine(settings, ref, device or settings.device, parse_settings(draft or ()))
    answer = engine.answer([{"role": "user", "content": text}], system, config, not as_json, trace)
    finish(answer, as_json, _line(answer))


class Engine:
    """A loaded base with its drafter, for commands that generate in their own process."""

    def __init__(self, settings: Any, ref: Any, device: str, drafting: dict[str, Any]):
        from decoding.drafters import make_drafter
        from decoding.target import fast_target
        from speculoos.commands.targets import load_target

        self.ref = ref
        self.base, draft = load_target(settings, ref, device)
        for notice in getattr(draft, "notices", ()):
            say(notice)
        self.target = fast_target(self.base)
        self.drafter = make_drafter(self.target, draft, drafting)

    def answer(
        self, messages: list[dict[str, str]], system: str, config: Any, show: bool, trace: Path | None = None
    ) -> dict[str, Any]:
        """The result object of `speculoos generate`; with `show` the text is printed as it comes. `trace`: a file for
        the step records, JSON lines, whole or not there."""
        from decoding.generate import generate as run
        from decoding.stats import summarize
        from decoding.text import TextStream
        from models.chat import render

        stream = TextStream(self.base.tokenizer)
        steps, records = [], []
        for step in run(self.target, self.drafter, render(self.base.tokenizer, messages, system), config):
            steps.append(step)
            records.append(stream.record(step))
            if show:
                print("".join(token["text"] for token in records[-1]["tokens"]), end="", flush=True)
        if show:
            print()
        if trace is not None:
            with new_file(trace) as lines:
                lines.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        summary = summarize(steps)
        return {
            **{"model": self.ref.name, "token_ids": [t.id for s in steps for t in s.tokens], "text": stream.text},
            **{"tokens": list(_tokens(records)), "mean_accepted_length": summary.mean_accepted_length},
            **{
                "tokens_per_second": summary.tokens_per_second,
                "finish": summary.finish,
                "device": str(self.base.device),
            },
            **{"acceptance_by_depth": list(summary.acceptance_by_depth), "notice": self.target.notice},
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
