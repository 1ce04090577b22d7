"""The rows of a dataset: with loss masks if a job made a preview, plain otherwise, none if the files are broken."""

import json
import re
from pathlib import Path

import gradio as gr
import pytest

from app.pages.data import RowsBrowser
from app.views.data_view import preview
from models.data_rows import ROWS, masked_rows, rows_from
from speculoos.settings import Settings
from tracking.db import writing
from tracking.tables import Dataset, new_id

HOSTILE = "<img src=x onerror=alert(1)> ${alert(1)}"


def write_shard(folder, rows, number=0):
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"shard-{number:05d}.jsonl").write_text(lines)


def conversation(number: int) -> dict:
    turns = [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": f"answer {number}"}]
    return {"id": f"line-{number}", "messages": turns}


def test_the_first_rows_come_from_the_shards_in_order(tmp_path):
    write_shard(tmp_path, [conversation(n) for n in range(5)])
    write_shard(tmp_path, [conversation(n) for n in range(5, 100)], number=1)
    assert [row["id"] for row in rows_from(tmp_path).rows] == [f"line-{n}" for n in range(ROWS)]


def test_a_preview_shows_what_is_learned_and_hostile_text_literally(tmp_path):
    pieces = [{"text": HOSTILE, "in_loss": False}, {"text": "answer", "in_loss": True}]
    row = {"id": "1", "pieces": pieces, "tokens": 9, "loss_tokens": 3, "problem": ""}
    (tmp_path / "preview.json").write_text(json.dumps({"rows": [row]}))
    html = preview([{"id": 1, "messages": []}], masked_rows(tmp_path))
    assert '<span class="sp-in-loss">answer</span>' in html
    assert "3 of 9 tokens" in html
    assert "<img" not in html
    assert "${" not in html


def test_without_a_preview_answers_are_marked_by_their_role(tmp_path):
    write_shard(tmp_path, [conversation(1)])
    html = preview(rows_from(tmp_path).rows, masked_rows(tmp_path))
    assert html.count("sp-message-answer") == 1
    assert "<img" not in html


def test_broken_and_missing_files_show_nothing(tmp_path):
    assert masked_rows(tmp_path / "gone") == {} and rows_from(tmp_path / "gone").rows == []
    (tmp_path / "preview.json").write_text("[1, 2")
    (tmp_path / "shard-00000.jsonl").write_bytes(b"\xff\xfe not json\n")
    assert masked_rows(tmp_path) == {} and rows_from(tmp_path).rows == []
    (tmp_path / "preview.json").write_text('["not a table"]')
    (tmp_path / "shard-00000.jsonl").write_text('"text"\n{"messages": 3}\n')
    assert masked_rows(tmp_path) == {} and rows_from(tmp_path).rows == []
    assert "No rows yet" in preview([], {})


def write_shards(folder: Path, *counts: int) -> None:
    number = 0
    for shard, count in enumerate(counts):
        rows = [{"id": f"row-{n}", "messages": exchange(f"Wasp{n} weiß's")} for n in range(number, number + count)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"shard-{shard:05d}.jsonl").write_text(text)
        number += count


def exchange(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]


def read_pages(folder: Path, query: str = "", count: int = 4) -> list[list[str]]:
    """The ids of every page."""
    pages, position = [], ""
    while True:
        result = rows_from(folder, position, query, count)
        pages.append([row["id"] for row in result.rows])
        if not (position := result.next):
            return pages


def test_rows_are_read_a_few_at_a_time_over_all_shards(tmp_path: Path) -> None:
    write_shards(tmp_path, 5, 1, 4)
    pages = read_pages(tmp_path)
    assert [len(page) for page in pages] == [4, 4, 2]
    assert sum(pages, []) == [f"row-{n}" for n in range(10)]


def test_a_page_is_full_whatever_the_shards_and_the_preview_hold(home: Settings) -> None:
    """With shards of one row and a preview of the first only, no row is skipped forwards or backwards."""
    data_id = new_id()
    folder = home.home / "datasets" / data_id
    folder.mkdir(parents=True)
    write_shards(folder, *[1] * 20)
    row = {"id": "row-0", "pieces": [{"text": "known", "in_loss": True}], "tokens": 2, "loss_tokens": 1}
    (folder / "preview.json").write_text(json.dumps({"rows": [row]}))
    with writing(home) as session:
        session.add(Dataset(id=data_id, name="d", kind="conversations", state="ready", path=str(folder), rows=20))
    with gr.Blocks():
        browser = RowsBrowser(home, gr.Textbox())
    pages = [browser._shown(data_id, "", [])]
    for navigate in (browser._shown, browser._shown, browser._back, browser._back):
        pages.append(navigate(data_id, "", pages[-1][-1]))
    first, second, third = ([f"row-{n}" for n in part] for part in (range(8), range(8, 16), range(16, 20)))
    assert [re.findall("<h3><span>(row-[0-9]+)", page[0]) for page in pages] == [first, second, third, second, first]
    assert pages[0][0].count("sp-in-loss") == 2 and pages[0][0].count("sp-message-answer") == 7
    assert [page[2].visible for page in pages] == [True, True, False, True, True]


def test_rows_are_searched_ignoring_case(tmp_path: Path) -> None:
    write_shards(tmp_path, 12)
    assert read_pages(tmp_path, "WASP1 yes") == [["row-1", "row-10", "row-11"]]
    assert read_pages(tmp_path, "weiss") == read_pages(tmp_path, "")
    assert read_pages(tmp_path, "messages") == [[]], "names of fields are no text"


def test_a_search_through_much_ends_early_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path, 30)
    monkeypatch.setattr("models.data_rows.MOST_READ", 1_000)
    result = rows_from(tmp_path, "", "wasp29")
    assert (result.rows, result.whole) == ([], False) and result.next
    assert [page for page in read_pages(tmp_path, "wasp29") if page] == [["row-29"]]


@pytest.mark.parametrize("position", ["", "x", "9:0", "-1:2", "0:99999999", "0:٣", "1:2:3"])
def test_an_invalid_position_means_the_beginning_or_the_end(tmp_path: Path, position: str) -> None:
    write_shards(tmp_path, 2)
    assert len(rows_from(tmp_path, position).rows) in (0, 2)
