"""A dataset of several shards is exported as one file, and importing that file gives the same rows."""

import json
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.downloads import routes
from app.events import answer_error
from app.pages.data import next_step
from cli.main import main
from corpus.answered import read_answered
from corpus.prompts import read_prompts
from corpus.rows import ImportedRow
from corpus.shards import ShardWriter
from models.data_export import ROW_CONVERTERS, export_file, export_lines
from speculoos.errors import BadInput, Damaged, SpeculoosError
from speculoos.settings import Settings
from tests.tools.homes import add_answers
from tracking.db import reading, writing
from tracking.tables import Dataset

CALL = {"type": "function", "function": {"name": "look", "arguments": {"where": "barn"}}}
MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "the fox?\u2028 it"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "it jumps", "tool_call_id": "c1"},
    {"role": "assistant", "content": "lazy dog", "reasoning_content": "it jumps"},
]


def conversations(folder: Path) -> Path:
    """Three rows in three shards."""
    fields = {
        "finish": ["stop", "length"],
        "tools": [CALL],
        "category": "farm",
        "token_ids": [1, 2],
        "loss_spans": [[0, 1]],
    }
    with ShardWriter(folder, rows=1) as writer:
        for number in range(3):
            writer.add({"id": f"line-{number}", "messages": MESSAGES, **fields})
    return folder


@pytest.mark.parametrize("form", ROW_CONVERTERS)
def test_conversations_come_in_again_as_they_were(tmp_path: Path, form: str) -> None:
    rows = export_file(conversations(tmp_path / "set"), tmp_path / "data.jsonl", form)
    records = [json.loads(line) for line in (tmp_path / "data.jsonl").read_bytes().splitlines()]
    assert rows == len(records) == 3 and [record["id"] for record in records] == ["line-0", "line-1", "line-2"]
    assert not {"token_ids", "loss_spans"} & set(records[0]) and form in records[0]
    for row in read_answered(tmp_path / "data.jsonl"):
        assert isinstance(row, ImportedRow)
        assert (row.messages, row.finish) == (MESSAGES, ["stop", "length"])
        assert (row.tools, row.category) == ([CALL], "farm")


@pytest.mark.parametrize("form", ROW_CONVERTERS)
def test_prompts_keep_their_reference_answers(tmp_path: Path, form: str) -> None:
    messages = [{"role": "user", "content": "one?"}, {"role": "user", "content": "two?"}]
    with ShardWriter(tmp_path / "set") as writer:
        writer.add({"id": "a", "messages": messages, "reference": ["", "2"], "source": {"line": 1}})
    export_file(tmp_path / "set", tmp_path / "data.jsonl", form)
    (row,) = read_prompts(tmp_path / "data.jsonl")
    assert isinstance(row, ImportedRow) and (row.messages, row.reference) == (messages, ["", "2"])


def test_nothing_is_written_of_a_damaged_set(tmp_path: Path) -> None:
    folder = conversations(tmp_path / "set")
    with pytest.raises(BadInput, match="choose messages or conversations"):
        export_lines(folder, "xml")
    (folder / "shard-00001.jsonl").write_text("{}\n")
    with pytest.raises(Damaged, match="shard-00001"):
        export_file(folder, tmp_path / "data.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_the_command_and_the_page_give_the_same_file(
    home: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_id = add_answers(home, None, "my answers", rows=5)
    assert main(["data", "export", "my answers", "--output", str(tmp_path / "out.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) | {"path": "", "bytes": 0} == {
        **{"path": "", "format": "messages", "rows": 5, "bytes": 0}
    }
    assert main(["data", "export", "my answers", "--out", str(tmp_path), "--format", "conversations"]) == 0
    assert "5 rows" in capsys.readouterr().out

    app = FastAPI()
    app.include_router(routes(home))
    app.add_exception_handler(SpeculoosError, answer_error)
    with reading(home) as session:
        links = next_step(session.get_one(Dataset, data_id))
    client = TestClient(app)
    for form, file in (("messages", "out.jsonl"), ("conversations", "my-answers.jsonl")):
        assert f'href="/api/datasets/{data_id}/{form}"' in links
        response = client.get(f"/api/datasets/{data_id}/{form}")
        assert response.content == (tmp_path / file).read_bytes()
        assert response.headers["content-disposition"] == 'attachment; filename="my-answers.jsonl"'
    command = ["data", "export", data_id, "--output", str(tmp_path / "cut"), "--shard-rows", "2"]
    assert main(command) == 0 and "3 files of at most 2 rows" in capsys.readouterr().out
    files = sorted((tmp_path / "cut").iterdir())
    assert [path.name for path in files] == ["shard-00000.jsonl", "shard-00001.jsonl", "shard-00002.jsonl"]
    assert b"".join(path.read_bytes() for path in files) == (tmp_path / "out.jsonl").read_bytes()
    assert main(command) == 2 and "name an empty or a new one" in capsys.readouterr().err
    assert client.get(f"/api/datasets/{data_id}/xml").status_code == 400
    assert client.get("/api/datasets/nothing/messages").status_code == 404

    with writing(home) as session:
        data = session.get_one(Dataset, data_id)
        data.state = "pending"
        assert "/api/datasets" not in next_step(data)
    assert main(["data", "export", data_id]) == 1
    assert "is still being created" in capsys.readouterr().err
    assert client.get(f"/api/datasets/{data_id}/messages").status_code == 400
