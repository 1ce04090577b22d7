"""speculoos export with formats: the list, a folder, a zip, and what is refused."""

import json
from pathlib import Path

import pytest

from cli.main import main
from speculoos.checksums import find_changed_files
from speculoos.settings import Settings
from tracking import db
from tracking.tables import Base, Checkpoint


@pytest.fixture
def rows(home: Settings, base, checkpoint) -> None:
    """A base `tiny` with the checkpoints `heads` (Medusa) and `eagle3`."""
    with db.writing(home) as session:
        found = Base(name="tiny", source="folder", location=str(base.path), path=str(base.path), state="ready")
        session.add(found)
        session.flush()
        for name, kind in (("heads", "medusa"), ("eagle3", "eagle3-residual")):
            row = {"name": name, "method": kind.split("-")[0], "base_id": found.id, "state": "ready"}
            session.add(Checkpoint(**row, path=str(checkpoint(kind))))


def last_json(capsys: pytest.CaptureFixture[str]):
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def test_the_list_says_what_is_possible_for_whom_and_why_not(rows, capsys) -> None:
    assert main(["export", "--list", "tiny@eagle3", "--json"]) == 0
    found = {option["name"]: option for option in last_json(capsys)}
    eagle3 = ["own", "vllm", "vllm-fp8", "vllm-int8", "speculators", "sglang", "trtllm", "medusa", "modelopt"]
    assert [*found] == [*eagle3, "huggingface", "gguf", "gguf-f16", "gguf-q8_0"]
    assert all({*option} == {"name", "title", "for", "possible", "reason", "bytes"} for option in found.values())
    assert found["vllm"]["possible"] and found["vllm"]["for"].startswith("vLLM 0.") and not found["vllm"]["reason"]
    assert not found["sglang"]["possible"] and "norm_before_residual" in found["sglang"]["reason"]
    assert main(["export", "--list", "tiny@heads"]) == 0
    assert "SGLang never had Medusa" in capsys.readouterr().out


def test_a_folder_and_a_zip_are_written_with_their_reports(rows, tmp_path: Path, capsys) -> None:
    assert main(["export", "tiny@heads", "--format", "vllm", "--out", str(tmp_path / "out"), "--json"]) == 0
    found = last_json(capsys)
    assert found["passed"] and found["path"] == str(tmp_path / "out") and found["checkpoint"] == "tiny@heads"
    assert {check["name"] for check in found["checks"]} >= {"base", "logits", "tokens"}
    assert not find_changed_files(tmp_path / "out") and "`heads`" in (tmp_path / "out" / "README.md").read_text()
    assert main(["export", "tiny@heads", "--format", "medusa", "--out", str(tmp_path / "out.zip")]) == 0
    shown = capsys.readouterr().out
    assert "passed  logits: " in shown and (tmp_path / "out.zip").is_file()


def test_what_cannot_be_is_refused_in_one_sentence(rows, tmp_path: Path, capsys) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    for words, said in (
        (["tiny@heads", "--format", "sglang"], "SGLang never had Medusa"),
        (["tiny@heads", "--format", "onnx"], "Unknown format 'onnx'; known are own, vllm"),
        (["tiny@heads", "--format", "vllm", "--out", str(tmp_path / "taken")], "already exists"),
    ):
        assert main(["export", *words]) == 1
        assert said in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["mine.txt"]


def test_a_place_where_nothing_can_be_written_is_told_before_the_work(rows, tmp_path: Path, capsys) -> None:
    (tmp_path / "out.zip").mkdir()
    (tmp_path / "file").write_text("mine")
    for place, said in (
        ("out.zip", "is a folder, so no zip can be written there"),
        ("file", "already exists"),
        ("file/out", "is a file, so nothing can be written below it"),
    ):
        for form in ("vllm", "own") if place == "out.zip" else ("vllm",):
            assert main(["export", "tiny@heads", "--format", form, "--out", str(tmp_path / place)]) == 1
            told = capsys.readouterr().err
            assert said in told and len(told.strip().splitlines()) == 1, "nothing was begun"
    assert not [*(tmp_path / "out.zip").iterdir()] and (tmp_path / "file").read_text() == "mine"


def test_a_forced_export_that_failed_says_so_and_ends_with_1(rows, tmp_path: Path, capsys, monkeypatch) -> None:
    from formats import writers

    real = writers.layer_config
    monkeypatch.setattr(writers, "layer_config", lambda *a: {**real(*a), "tie_word_embeddings": True})  # the fault
    words = ["export", "tiny@eagle3", "--format", "vllm", "--out", str(tmp_path / "out")]
    assert main(words) == 1 and not (tmp_path / "out").exists()
    assert "tie_word_embeddings" in capsys.readouterr().err
    assert main([*words, "--force"]) == 1 and (tmp_path / "out").is_dir()
    assert "should not be served" in capsys.readouterr().err
