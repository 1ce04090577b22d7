"""Import of answered conversations: accepted formats, rows left out with their reasons, and the learned tokens."""

import json
from pathlib import Path
from typing import Any

import pytest

from corpus.answered import read_answered
from corpus.importing import import_answered
from corpus.rows import BadRow, ImportedRow
from corpus.shards import read_rows
from models.base import load_base
from speculoos.errors import BadInput
from speculoos.reporting import ConsoleReporter
from tests.tiny import make_tiny_base
from training.masks import mask_conversation

QUESTION = {"role": "user", "content": "the fox?"}
ANSWER = {"role": "assistant", "content": "lazy dog"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"where": "barn"}'}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>tools\n' + tools[0].function.name + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name + ' ' + (c.function.arguments | tojson) }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    loaded = load_base(make_tiny_base(tmp_path_factory.mktemp("base")))
    loaded.tokenizer.chat_template = TEMPLATE
    return loaded


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path: Path, *records: Any) -> list[ImportedRow | BadRow]:
    return list(read_answered(write(path / "rows.jsonl", *records)))


def texts(base: Any, row: dict[str, Any]) -> list[str]:
    """The learned texts of a stored row."""
    return [base.tokenizer.decode(row["token_ids"][start:end]) for start, end in row["loss_spans"]]


def test_sharegpt_messages_alpaca_and_mt_bench_shapes_keep_their_answers(tmp_path: Path) -> None:
    rows = read(
        tmp_path,
        {"conversations": [{"from": "human", "value": "the fox?"}, {"from": "gpt", "value": "lazy dog"}]},
        {"messages": [QUESTION, ANSWER]},
        {"instruction": "the fox?", "output": "lazy dog"},
        {"prompt": "the fox?", "response": "lazy dog"},
        {"turns": ["the fox?"], "reference": ["lazy dog"]},
    )
    assert [row.messages for row in rows] == [[QUESTION, ANSWER]] * 5
    assert [row.finish for row in rows] == [["stop"]] * 5


def test_a_greeting_and_an_open_question_are_left_out_the_rest_stays(tmp_path: Path) -> None:
    system = {"role": "system", "content": "be brief"}
    (row,) = read(tmp_path, {"messages": [system, ANSWER, QUESTION, ANSWER, QUESTION], "finish": ["length", "stop"]})
    assert row.messages == [system, QUESTION, ANSWER]
    assert row.finish == ["stop"], "the cut greeting's ending went with it"


@pytest.mark.parametrize(
    "fields",
    [
        {"finish": ["stop", "length"]},
        {"finish": "length"},
        {"finish_reason": "length"},
        {"finish_reason": "max_tokens"},
        {"truncated": True},
        {"message": {"finish_reason": "length"}},
    ],
)
def test_every_way_to_say_that_the_last_answer_was_cut(tmp_path: Path, fields: dict[str, Any]) -> None:
    last = ANSWER | fields.pop("message", {})
    (row,) = read(tmp_path, {"messages": [QUESTION, ANSWER, QUESTION, last], **fields})
    assert (row.finish, row.cut) == (["stop", "length"], 1)
    assert "finish_reason" not in row.messages[-1]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": [QUESTION]}, "no answer: no assistant turn follows a question"),
        ({"messages": [ANSWER, QUESTION]}, "no answer: no assistant turn follows a question"),
        ({"prompt": "the fox?"}, "no answer"),
        ({"messages": [QUESTION, {"role": "assistant", "content": " "}]}, "no answer: an assistant turn is empty"),
        ({"messages": [{"role": "user", "content": ""}, ANSWER]}, "a user turn is empty"),
        ({"messages": [{"role": "judge", "content": "x"}]}, "role 'judge' is not user, assistant, system or tool"),
        ({"messages": [QUESTION, ANSWER | {"tool_calls": ["x"]}]}, "expected a tool call, found text"),
        ({"messages": [QUESTION, ANSWER | {"content": "\ud800"}]}, "unpaired surrogate"),
        (7, "expected an object, found a number"),
    ],
)
def test_a_bad_row_says_why(tmp_path: Path, record: Any, reason: str) -> None:
    (row,) = read(tmp_path, record)
    assert isinstance(row, BadRow) and row.line == 1 and reason in row.reason


def test_what_is_stored_is_what_the_base_would_have_written(base: Any, tmp_path: Path) -> None:
    """Tool calls, tool messages, declared tools and reasoning follow the template; only answers are learned."""
    turns = [
        {"from": "human", "value": "the fox?"},
        {"from": "gpt", "value": None, "tool_calls": [CALL]},
        {"from": "tool", "value": "the fox jumps", "tool_call_id": "c1"},
        {"from": "gpt", "value": "lazy dog", "reasoning_content": "it jumps"},
    ]
    file = write(tmp_path / "rows.jsonl", {"conversations": turns, "system": "be brief", "tools": TOOLS})
    import_answered(file, tmp_path / "set", lambda row: mask_conversation(row, base.tokenizer), ConsoleReporter())
    (row,) = read_rows(tmp_path / "set")
    assert texts(base, row) == ['look {"where": "barn"}<|im_end|>', "<think>it jumps</think>lazy dog<|im_end|>"]
    text = base.tokenizer.decode(row["token_ids"])
    assert text.startswith("<|im_start|>tools\nlook<|im_end|>\n<|im_start|>system\nbe brief<|im_end|>")
    assert "<|im_start|>tool\nthe fox jumps<|im_end|>" in text


def test_no_end_of_turn_is_learned_after_an_answer_that_was_cut(base: Any, tmp_path: Path) -> None:
    rows = {"messages": [QUESTION, ANSWER], "finish": "length"}, {"messages": [QUESTION, ANSWER]}
    file, folder = write(tmp_path / "rows.jsonl", *rows), tmp_path / "set"
    report = import_answered(file, folder, lambda row: mask_conversation(row, base.tokenizer), ConsoleReporter())
    cut, whole = read_rows(folder)
    assert texts(base, cut) == ["lazy dog"] and texts(base, whole) == ["lazy dog<|im_end|>"]
    length = len(base.tokenizer("lazy dog")["input_ids"])
    assert (report["cut_answers"], report["answer_tokens"]) == (1, 2 * length + 1)


def test_the_report_counts_what_was_kept_and_left_out(base: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", *[{"messages": [QUESTION, ANSWER]}] * 3, {"messages": [QUESTION]})
    masking = lambda row: mask_conversation(row, base.tokenizer)  # noqa: E731
    report = import_answered(file, tmp_path / "set", masking, ConsoleReporter(), limit=2)
    assert (report["rows"], report["bad_rows"], report["rows_read"]) == (2, 0, 2)
    report = import_answered(file, tmp_path / "set", masking, ConsoleReporter())
    assert (report["rows"], report["bad_rows"], report["bad"][0]["line"]) == (3, 1, 4)
    assert report["tokens"] == sum(len(row["token_ids"]) for row in read_rows(tmp_path / "set"))
    assert sum(count for _, count in report["lengths"]) == 3 and report["coverage"][-1][1] == 1
    assert report["mask_sources"] == {"prefixes": 3}
    with pytest.raises(BadInput, match="no usable conversation among 1 rows.*line 1, no answer"):
        import_answered(write(tmp_path / "bad.jsonl", {"prompt": "x"}), tmp_path / "none", masking, ConsoleReporter())
    assert not (tmp_path / "none").exists()


def test_a_row_that_the_template_refuses_is_a_bad_row(base: Any, tmp_path: Path, monkeypatch: Any) -> None:
    refusing_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}" + TEMPLATE
    )
    monkeypatch.setattr(base.tokenizer, "chat_template", refusing_template)
    system = {"role": "system", "content": "be brief"}
    file = write(tmp_path / "rows.jsonl", {"messages": [system, QUESTION, ANSWER]}, {"messages": [QUESTION, ANSWER]})
    report = import_answered(
        file, tmp_path / "set", lambda row: mask_conversation(row, base.tokenizer), ConsoleReporter()
    )
    assert report["rows"] == 1 and "no system here" in report["bad"][0]["reason"]
