"""Record a model's greedy answers for replay, from a local base model or an OpenAI-compatible endpoint."""

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from corpus.endpoints import EndpointPool, short_error
from decoding.target import fast_target
from evaluation.questions import turns
from models.base import LoadedBase
from models.chat import render
from speculoos.errors import BadInput, Cancelled, SpeculoosError, Unavailable
from speculoos.files import new_file
from speculoos.reporting import Reporter, check_stop
from speculoos.settings import Endpoint

MAX_LENGTH = 4096
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class RecordedAnswer:
    """One answer, with token ids and log-probabilities if known."""

    text: str
    finish: str
    prompt_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: Any = None


Answerer = Callable[[Messages], RecordedAnswer]


def record(
    answer: Answerer,
    questions: Sequence[dict[str, Any]],
    path: Path,
    reporter: Reporter,
    model: str,
    at_once: int = 1,
) -> int:
    """Write the answers to all turns of `questions`, one JSON line each (`corpus.recordings`); returns their number.

    The file is written atomically. Failed questions are logged and omitted; raises Unavailable when all fail.
    """
    written, first = 0, ""
    with new_file(path) as file, ThreadPoolExecutor(at_once) as threads:
        results = threads.map(lambda row: _answer_turns(answer, row, model, reporter), questions)
        for number, (rows, problem) in enumerate(results, 1):
            first = first or problem
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            written += len(rows)
            reporter.progress(number, len(questions), "questions")
        if not written:
            check_stop(reporter)
            raise Unavailable(f"Nothing was recorded. The first question: {first}")
    return written


def _answer_turns(
    answer: Answerer, row: dict[str, Any], model: str, reporter: Reporter
) -> tuple[list[dict[str, Any]], str]:
    """(lines of all answered turns, error message or "")."""
    system, users = turns(row)
    messages: Messages = [{"role": "system", "content": system}] if system else []
    lines: list[dict[str, Any]] = []
    try:
        for number, user in enumerate(users):
            check_stop(reporter)
            messages = [*messages, {"role": "user", "content": user}]
            result = answer(messages)
            messages = [*messages, {"role": "assistant", "content": result.text}]
            lines.append(_line(row, number, messages, result, model))
    except Cancelled:
        raise
    except SpeculoosError as error:
        reporter.log(f"{row.get('id')}: left out, {error}", "warning")
        return lines, str(error)
    return lines, ""


def _line(row: dict[str, Any], number: int, messages: Messages, result: RecordedAnswer, model: str) -> dict[str, Any]:
    name = f"{row.get('id', '')}" + (f"-{number}" if number else "")
    line = {"id": name, "messages": messages, "finish": result.finish, "source": {"model": model}}
    fields = {"prompt_ids": result.prompt_ids, "token_ids": result.token_ids, "logprobs": result.logprobs}
    fields["category"] = row.get("category")
    return line | {key: value for key, value in fields.items() if value}


def answerer_of_base(base: LoadedBase, max_tokens: int, logprobs: int = 0) -> Answerer:
    """Plain greedy answers of a local base model, with the top `logprobs` tokens. Not thread-safe."""
    target = fast_target(base, MAX_LENGTH)

    def answer(messages: Messages) -> RecordedAnswer:
        prompt = render(base.tokenizer, messages)
        target.rewind(0)
        max_new = min(max_tokens, target.max_length - len(prompt))
        ids, top_tokens = [], []
        row = target.prefill(prompt).logits[-1]
        while True:
            ids.append(int(row.argmax()))
            if logprobs:
                top_tokens.append(_top_tokens(row, logprobs))
            if len(ids) >= max_new or ids[-1] in base.eos_ids:
                break
            row = target.extend(ids[-1:], last_only=True).logits[-1]
        text = base.tokenizer.decode(ids, skip_special_tokens=True)
        return RecordedAnswer(text, "stop" if ids[-1] in base.eos_ids else "length", prompt, ids, top_tokens)

    return answer


def _top_tokens(row: torch.Tensor, count: int) -> list[list[float]]:
    best = row.float().log_softmax(-1).topk(min(count, len(row)))
    return [[int(i), round(float(v), 5)] for v, i in zip(best.values, best.indices, strict=True)]


def answerer_of_endpoint(
    endpoint: Endpoint, max_tokens: int, logprobs: int = 0, model: str = ""
) -> tuple[Answerer, int]:
    """(answerer with temperature 0, maximum concurrent requests). Servers without log-probabilities ignore or reject
    the option."""
    pool = EndpointPool([endpoint], model)
    options = {"logprobs": True, "top_logprobs": min(logprobs, 20)} if logprobs else {}

    def answer(messages: Messages) -> RecordedAnswer:
        try:
            reply, _ = pool.ask(threading.Event(), messages=messages, max_tokens=max_tokens, temperature=0.0, **options)
            content = (reply.body["choices"][0].get("logprobs") or {}).get("content")
            top_tokens = [_pairs(entry) for entry in content or ()]
        except SpeculoosError:
            raise
        except Exception as error:
            raise Unavailable(short_error(error)) from None
        return RecordedAnswer(reply.text, reply.finish, logprobs=top_tokens)

    return answer, pool.slots


def _pairs(entry: dict[str, Any]) -> list[list[Any]]:
    return [[each["token"], round(each["logprob"], 5)] for each in (entry, *(entry.get("top_logprobs") or ()))]


def check_empty(path: Path) -> Path:
    """The path with `~` expanded. Raises BadInput when it exists."""
    path = path.expanduser()
    if path.exists():
        raise BadInput(f"{path}: is there already; give another name, or remove it first.")
    return path
