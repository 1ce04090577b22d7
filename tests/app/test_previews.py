"""The first rows of a data set: masked where a job made a preview, plain where not, nothing where files are broken."""

import json

from app.previews import ROWS, masked_rows, message_rows
from app.views.data_view import preview

HOSTILE = "<img src=x onerror=alert(1)> ${alert(1)}"


def write_shard(folder, rows, number=0):
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"shard-{number:05d}.jsonl").write_text(lines)


def conversation(number: int) -> dict:
    turns = [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": f"answer {number}"}]
    return {"id": f"line-{number}", "messages": turns}


def test_rows_come_from_the_shards_in_order_and_few_of_them(tmp_path):
    write_shard(tmp_path, [conversation(n) for n in range(5)])
    write_shard(tmp_path, [conversation(n) for n in range(5, 100)], number=1)
    assert [row["id"] for row in message_rows(tmp_path)] == [f"line-{n}" for n in range(ROWS)]


def test_a_preview_shows_what_is_learned_and_hostile_text_literally(tmp_path):
    pieces = [{"text": HOSTILE, "in_loss": False}, {"text": "answer", "in_loss": True}]
    row = {"id": "1", "pieces": pieces, "tokens": 9, "loss_tokens": 3, "problem": ""}
    (tmp_path / "preview.json").write_text(json.dumps({"rows": [row]}))
    html = preview(masked_rows(tmp_path), [])
    assert '<span class="sp-in-loss">answer</span>' in html
    assert "3 of 9 tokens" in html
    assert "<img" not in html
    assert "${" not in html


def test_without_a_preview_answers_are_marked_by_their_role(tmp_path):
    write_shard(tmp_path, [conversation(1)])
    html = preview(masked_rows(tmp_path), message_rows(tmp_path))
    assert html.count("sp-said-answer") == 1
    assert "<img" not in html


def test_broken_and_missing_files_show_nothing(tmp_path):
    assert masked_rows(tmp_path / "gone") == message_rows(tmp_path / "gone") == []
    (tmp_path / "preview.json").write_text("[1, 2")
    (tmp_path / "shard-00000.jsonl").write_bytes(b"\xff\xfe not json\n")
    assert masked_rows(tmp_path) == message_rows(tmp_path) == []
    (tmp_path / "preview.json").write_text('["not a table"]')
    (tmp_path / "shard-00000.jsonl").write_text('"text"\n{"messages": 3}\n')
    assert masked_rows(tmp_path) == message_rows(tmp_path) == []
    assert "Rows appear here" in preview([], [])
