"""Exact labels from endpoints: token ids in the fields of other servers, checked against the base's tokenizer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corpus.conversations import GenerateOptions
from corpus.generate_remote import generate_remote
from corpus.importing import import_prompts
from corpus.labels import ServedBase
from corpus.replies import TOKEN_ID_REQUESTS, parse_reply
from corpus.shards import read_rows, read_summary
from models.base import load_tokenizer, read_eos_ids
from models.chat import render
from speculoos.errors import BadInput
from speculoos.reporting import SilentReporter
from speculoos.settings import Endpoint
from tests.corpus.labelling_server import LabellingServer
from training.masks import mask_conversation

SERVERS_WITH_IDS = ("vllm", "sglang", "sglang before")
TURNS = [{"turns": ["the fox", "lazy dog"]}, {"turns": ["quick"]}]


class RecordingReporter(SilentReporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, message: str, level: str = "info") -> None:
        self.lines.append(f"{level}: {message}")


@pytest.fixture(scope="module")
def served(tiny_base: Path) -> ServedBase:
    tokenizer = load_tokenizer(tiny_base)
    return ServedBase(tokenizer, read_eos_ids(tiny_base, tokenizer), "b" * 64, "t" * 64)


class Bench:
    """Generates answers through a server; keeps the report and the request bodies."""

    def __init__(self, folder: Path, served: ServedBase):
        self.folder, self.served, self.reporter = folder, served, RecordingReporter()
        self.bodies: list[dict[str, Any]] = []

    def answers(self, form: str, rows: list[dict], lie: str = "", served: bool = True, **options: Any) -> list[dict]:
        source = self.folder / "in.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        import_prompts(source, self.folder / "prompts", SilentReporter())
        with LabellingServer(self.served.tokenizer, form, lie) as server:
            endpoint = Endpoint("it", server.url, model="m", concurrency=3, retries=0)
            arguments = (self.folder / "prompts", self.folder / "out", GenerateOptions(**options), self.reporter)
            self.report = generate_remote(endpoint, "", *arguments, self.served if served else None)
            self.bodies = server.bodies
        return sorted(read_rows(self.folder / "out"), key=lambda row: row["id"])

    def spans(self, row: dict) -> list[str]:
        decode = self.served.tokenizer.decode
        return [decode(row["token_ids"][start:end]) for start, end in row["loss_spans"]]


@pytest.fixture
def bench(tmp_path: Path, served: ServedBase) -> Iterator[Bench]:
    return Bench(tmp_path, served)


@pytest.mark.parametrize("form", SERVERS_WITH_IDS)
def test_ids_are_read_from_the_fields_of_each_server(bench: Bench, form: str) -> None:
    two, one = bench.answers(form, TURNS)
    assert bench.spans(two) == ["you said: the fox<|im_end|>", "you said: lazy dog<|im_end|>"]
    assert bench.spans(one) == ["you said: quick<|im_end|>"]
    start = two["loss_spans"][0][0]
    assert two["token_ids"][:start] == render(bench.served.tokenizer, two["messages"][:1])
    assert bench.report["labels"] == {"exact": 2} and not any("warning" in line for line in bench.reporter.lines)
    masked = mask_conversation(one, bench.served.tokenizer)
    assert masked.source == "tokens" and masked.token_ids == one["token_ids"]
    summary = read_summary(bench.folder / "out")
    assert (summary["base_sha256"], summary["tokenizer_sha256"]) == ("b" * 64, "t" * 64)


@pytest.mark.parametrize("form", ["openai", "ignores"])
def test_a_server_without_ids_is_asked_without_them_and_its_text_is_kept(bench: Bench, form: str) -> None:
    two, one = bench.answers(form, TURNS)
    assert "token_ids" not in two and one["messages"][-1]["content"] == "you said: quick"
    assert bench.report["labels"] == {"no ids": 2} and bench.report["failed"] == []
    id_requests = [body for body in bench.bodies if body.keys() & {"return_token_ids", "return_meta_info"}]
    assert len(id_requests) == len(TOKEN_ID_REQUESTS) and len(bench.bodies) == len(TOKEN_ID_REQUESTS) + 3, (
        "each form is tried once, on one token"
    )
    assert sum("sends no token ids" in line for line in bench.reporter.lines) == 1


@pytest.mark.parametrize("lie", ["unknown ids", "ids of another text", "ids of another prompt"])
def test_impossible_ids_are_counted_warned_of_once_and_replaced_by_the_text(bench: Bench, lie: str) -> None:
    rows = bench.answers("vllm", TURNS, lie)
    assert all("token_ids" not in row and row["labels"] == lie for row in rows)
    assert bench.report["labels"] == {lie: 2}
    assert sum(line.startswith("warning") for line in bench.reporter.lines) == 1
    masked = mask_conversation(rows[1], bench.served.tokenizer)
    assert masked.source == "prefixes" and any(masked.mask)


@pytest.mark.parametrize("form", [*SERVERS_WITH_IDS, "ignores"])
def test_an_answer_cut_by_its_limit_teaches_no_end_of_turn(bench: Bench, form: str) -> None:
    (row,) = bench.answers(form, [{"prompt": "the quick brown fox jumps"}], max_tokens=6)
    assert row["finish"] == ["length"] and ("token_ids" in row) == (form != "ignores")
    masked = mask_conversation(row, bench.served.tokenizer, bench.served.eos_ids)
    learned = {i for i, inside in zip(masked.token_ids, masked.mask, strict=True) if inside}
    assert learned and not learned & bench.served.eos_ids


def test_reasoning_is_kept_where_templates_look_for_it_and_learned_as_it_was_written(bench: Bench) -> None:
    (row,) = bench.answers("vllm", [{"turns": ["think of it"]}])
    answer = row["messages"][-1]
    assert (answer["reasoning_content"], answer["content"]) == ("hm, well", "you said: think of it")
    assert bench.spans(row) == ["<think>\nhm, well\n</think>\n\nyou said: think of it<|im_end|>"]


def test_an_earlier_answer_that_the_prompt_does_not_repeat_is_read_and_not_learned(bench: Bench) -> None:
    """Clients send answers back without their reasoning, so this is what the base saw in the second turn."""
    (row,) = bench.answers("vllm", [{"turns": ["think of it", "and now?"]}])
    assert bench.spans(row) == ["you said: and now?<|im_end|>"] and row["messages"][1]["reasoning_content"]
    assert "you said: think of it" in bench.served.tokenizer.decode(row["token_ids"][: row["loss_spans"][0][0]])


@pytest.mark.parametrize("form", ["vllm", "sglang", "openai"])
def test_plain_completions_are_asked_with_the_ids_that_the_template_makes_here(bench: Bench, form: str) -> None:
    two, one = bench.answers(form, TURNS, api="completions")
    assert [m["content"] for m in two["messages"]][1::2] == ["you said: the fox", "you said: lazy dog"]
    assert all(isinstance(body["prompt"], list) and "messages" not in body for body in bench.bodies)
    if form == "openai":
        assert "token_ids" not in one
    else:
        assert bench.spans(two) == ["you said: the fox<|im_end|>", "you said: lazy dog<|im_end|>"]


def test_plain_completions_without_the_base_are_refused(bench: Bench) -> None:
    with pytest.raises(BadInput, match="need the base"):
        bench.answers("vllm", TURNS, served=False, api="completions")


def test_without_a_base_no_ids_are_requested(bench: Bench) -> None:
    bench.answers("openai", TURNS, served=False)
    assert len(bench.bodies) == 3 and bench.report["labels"] == {"text alone": 2}


def test_a_prompt_without_ids_is_checked_by_its_length(served: ServedBase) -> None:
    from corpus.labels import ConversationTokens
    from corpus.replies import Reply

    ids = [*served.tokenizer("fox", add_special_tokens=False)["input_ids"]]
    for prompt_tokens, problem in ((3, ""), (0, ""), (4, "ids of another prompt")):
        tokens = ConversationTokens(served)
        tokens.append([1, 2, 3], Reply("fox", "stop", ids=ids, prompt_tokens=prompt_tokens))
        assert tokens.problem == problem


@pytest.mark.parametrize("body", [None, [], {}, {"choices": []}, {"choices": [7]}, {"choices": "x"}])
def test_an_answer_without_choices_is_an_error(body: Any) -> None:
    with pytest.raises(ValueError, match="without choices"):
        parse_reply(body)


@pytest.mark.parametrize("choice", [{"text": "\ud83d"}, {"text": "x", "finish_reason": "\ud83d"}])
def test_an_answer_that_no_file_can_hold_is_an_error(choice: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="unpaired surrogate"):
        parse_reply({"choices": [choice]})


def test_more_tokens_than_there_can_be_are_not_counted() -> None:
    reply = parse_reply({"choices": [{"text": "x"}], "usage": {"completion_tokens": 10**400, "prompt_tokens": 10**30}})
    assert (reply.tokens, reply.prompt_tokens) == (0, 0)


@pytest.mark.parametrize("ids", ["x", [], [1.5], [True], [None], {"a": 1}])
def test_what_is_no_list_of_ids_is_none(ids: Any) -> None:
    reply = parse_reply({"choices": [{"message": {"content": None}, "token_ids": ids}], "prompt_token_ids": ids})
    assert reply.ids is None and reply.prompt_ids is None and reply.text == ""
