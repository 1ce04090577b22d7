"""Compares our engine, vLLM and llama.cpp on a CPU: the starter alone, with its head, and with n-gram lookup.

    python -m benchmarks.engines --llamacpp PYTHON --vllm PYTHON --questions FILE --limit 12 --json FILE

Greedy, one request at a time. All servers stay started; every contender answers a question before the next question,
in rotating order, so that disturbances affect all. A speed is new tokens over the seconds that a client waits, prefill
and HTTP included (ours: within this process). Figures are medians over questions with 95 % bootstrap intervals; a ratio
is the median over questions of the ratio to the same engine, precision and question without a draft.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import (
    add_questions,
    conditions,
    finish,
    interval_text,
    load_average,
    make_parser,
    median_interval,
    table_lines,
)
from benchmarks.servers import add_engines, engines, export, first_questions, server, versions
from corpus.endpoints import EndpointPool
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.target import Target, fast_target
from evaluation.agreement import chain
from formats.engines import ENGINES
from models.base import load_base
from models.chat import render
from models.checkpoints import load_draft
from models.starter import STARTER_HEAD, starter_path
from speculoos.settings import Endpoint

TOKENS = 3
PRECISIONS = {"vllm": ("float32",), "llamacpp": ("float16", "q4_1")}
NGRAM = ["--spec-type", "ngram-simple"]
Answer = tuple[str, int, float]
"""(text, new tokens, seconds)"""
Contender = Callable[[dict[str, Any]], Answer]


def ours(target: Target, tokenizer: Any, drafter: Any, max_tokens: int) -> Contender:
    """Our decoding loop with one drafter; no prefix of an earlier prompt is reused."""

    def run(row: dict[str, Any]) -> Answer:
        target.rewind(0)
        began = time.perf_counter()
        prompt = render(tokenizer, row["messages"])
        ids = [
            token.id for step in generate(target, drafter, prompt, GenerateConfig(max_tokens)) for token in step.tokens
        ]
        text = tokenizer.decode(ids, skip_special_tokens=True)
        return text, len(ids), time.perf_counter() - began

    return run


def served(endpoint: Endpoint, max_tokens: int) -> Contender:
    """A chat completion of a server."""
    pool = EndpointPool([endpoint])

    def run(row: dict[str, Any]) -> Answer:
        fields = {"messages": row["messages"], "max_tokens": max_tokens, "temperature": 0.0}
        reply, _ = pool.create_completion(threading.Event(), **fields)
        return reply.text, reply.tokens, reply.seconds

    return run


def start(args: Any, folder: Path, pythons: dict[str, str], stack: ExitStack) -> dict[str, dict[str, Contender]]:
    """{engine and precision: {drafting: contender}}; "plain" comes first."""
    exported, base = load_base(starter_path()), load_base(starter_path())
    head = load_draft(STARTER_HEAD, base)
    target = fast_target(base, 4096)
    drafters = {
        "plain": make_drafter(target),
        f"head, chain of {TOKENS}": make_drafter(target, head, {"tree": chain(TOKENS)}),
        "head, tuned tree": make_drafter(target, head),
    }
    found = {
        "ours, float32": {
            name: ours(target, base.tokenizer, drafter, args.max_tokens) for name, drafter in drafters.items()
        }
    }
    for name, python in pythons.items():
        for precision in PRECISIONS[name]:
            form = ENGINES[name].format_of("eagle3", precision)
            draft = export(STARTER_HEAD, exported, form, folder / form)
            ways: dict[str, dict[str, Any]] = {
                "plain": {},
                f"head, chain of {TOKENS}": {"draft": draft, "method": "eagle3", "tokens": TOKENS},
            }
            if name == "llamacpp":
                ways["n-gram lookup"] = {"arguments": NGRAM}
            found[f"{ENGINES[name].title}, {precision}"] = {
                way: served(
                    stack.enter_context(server(name, python, folder, precision=precision, **options)), args.max_tokens
                )
                for way, options in ways.items()
            }
    return found


def race(contenders: dict[str, dict[str, Contender]], questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All contenders on all questions in turn; figures of each."""
    runs = [(engine, way, run) for engine, ways in contenders.items() for way, run in ways.items()]
    answers: dict[tuple[str, str], list[Answer]] = {(engine, way): [] for engine, way, _ in runs}
    for _, _, run in runs:
        run({"messages": [{"role": "user", "content": "Say hello."}]})
    for number, row in enumerate(questions):
        first = number % len(runs)
        for engine, way, run in (*runs[first:], *runs[:first]):
            answers[engine, way].append(run(row))
        print(f"{number + 1}/{len(questions)} questions", file=sys.stderr)
    return [figures(engine, way, taken, answers[engine, "plain"]) for (engine, way), taken in answers.items()]


def figures(engine: str, way: str, answers: Sequence[Answer], plain: Sequence[Answer]) -> dict[str, Any]:
    """Speed, ratio to plain, and number of texts that are the same."""
    speeds, base = (np.array([tokens / seconds for _, tokens, seconds in each]) for each in (answers, plain))
    return {
        "engine": engine,
        "drafting": way,
        "tokens_per_second": median_interval(speeds),
        "times_plain": median_interval(speeds / base),
        "identical_to_plain": sum(one[0] == other[0] for one, other in zip(answers, plain, strict=True)),
        "questions": len(answers),
        "tokens": sum(tokens for _, tokens, _ in answers),
    }


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    rows = []
    for one in result["contenders"]:
        speed, times = one["tokens_per_second"], one["times_plain"]
        ratio = "" if one["drafting"] == "plain" else interval_text(times)
        same = "" if one["drafting"] == "plain" else f"{one['identical_to_plain']} of {one['questions']}"
        rows.append((one["engine"], one["drafting"], interval_text(speed, 1), ratio, same))
    head = "| engine, base model | drafting | tokens/s | × its plain | texts as plain |"
    return "\n".join(table_lines(head, rows))


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add_questions(parser, limit=12, tokens=96)
    add_engines(parser)
    args, load = parser.parse_args(arguments), load_average()
    pythons = engines(args)
    found, questions = versions(pythons), first_questions(args.questions, args.limit)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        stack.enter_context(redirect_stdout(stack.enter_context((folder / "servers.log").open("w"))))
        contenders = race(start(args, folder, pythons, stack), questions)
    finish(result := conditions(load) | {"versions": found, "contenders": contenders}, table(result), args.json)


if __name__ == "__main__":
    main()
