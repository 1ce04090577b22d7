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
        base_row = Base(name="tiny", source="folder", location=str(base.path), path=str(base.path), state="ready")
        session.add(base_row)
        session.flush()
        for name, kind in (("heads", "medusa"), ("eagle3", "eagle3-residual")):
            fields = {"name": name, "method": kind.split("-")[0], "base_id": base_row.id, "state": "ready"}
            session.add(Checkpoint(**fields, path=str(checkpoint(kind))))


def last_json(capsys: pytest.CaptureFixture[str]):
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def test_the_list_shows_what_is_possible_and_why_not(rows, capsys) -> None:
    assert main(["export", "--list", "tiny@eagle3", "--json"]) == 0
    options = {option["name"]: option for option in last_json(capsys)}
    eagle3 = ["own", "vllm", "vllm-fp8", "vllm-int8", "speculators", "sglang", "trtllm", "medusa", "modelopt"]
    assert [*options] == [*eagle3, "huggingface", "gguf", "gguf-f16", "gguf-q8_0"]
    assert all({*option} == {"name", "title", "for", "possible", "reason", "bytes"} for option in options.values())
    assert (
        options["vllm"]["possible"] and options["vllm"]["for"].startswith("vLLM 0.") and not options["vllm"]["reason"]
    )
    assert not options["sglang"]["possible"] and "norm_before_residual" in options["sglang"]["reason"]
    assert main(["export", "--list", "tiny@heads"]) == 0
    assert "SGLang never had Medusa" in capsys.readouterr().out


def test_a_folder_and_a_zip_are_written_with_their_reports(rows, tmp_path: Path, capsys) -> None:
    assert main(["export", "tiny@heads", "--format", "vllm", "--out", str(tmp_path / "out"), "--json"]) == 0
    report = last_json(capsys)
    assert report["passed"] and report["path"] == str(tmp_path / "out") and report["checkpoint"] == "tiny@heads"
    assert {check["name"] for check in report["checks"]} >= {"base", "logits", "tokens"}
    assert not find_changed_files(tmp_path / "out") and "`heads`" in (tmp_path / "out" / "README.md").read_text()
    assert main(["export", "tiny@heads", "--format", "medusa", "--out", str(tmp_path / "out.zip")]) == 0
    output = capsys.readouterr().out
    assert "passed  logits: " in output and (tmp_path / "out.zip").is_file()


def test_an_impossible_export_is_refused_in_one_sentence(rows, tmp_path: Path, capsys) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    for arguments, message in (
        (["tiny@heads", "--format", "sglang"], "SGLang never had Medusa"),
        (["tiny@heads", "--format", "onnx"], "Unknown format 'onnx'; known are own, vllm"),
        (["tiny@heads", "--format", "vllm", "--out", str(tmp_path / "taken")], "already exists"),
    ):
        assert main(["export", *arguments]) == 1
        assert message in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["mine.txt"]


def test_an_unwritable_path_is_refused_before_the_work(rows, tmp_path: Path, capsys) -> None:
    (tmp_path / "out.zip").mkdir()
    (tmp_path / "file").write_text("mine")
    for path, message in (
        ("out.zip", "is a folder, so no zip can be written there"),
        ("file", "already exists"),
        ("file/out", "is a file, so nothing can be written below it"),
    ):
        for form in ("vllm", "own") if path == "out.zip" else ("vllm",):
            assert main(["export", "tiny@heads", "--format", form, "--out", str(tmp_path / path)]) == 1
            stderr = capsys.readouterr().err
            assert message in stderr and len(stderr.strip().splitlines()) == 1, "nothing was begun"
    assert not [*(tmp_path / "out.zip").iterdir()] and (tmp_path / "file").read_text() == "mine"


def test_a_forced_export_that_failed_says_so_and_ends_with_1(rows, tmp_path: Path, capsys, monkeypatch) -> None:
    from formats import writers

    real = writers.layer_config
    monkeypatch.setattr(writers, "layer_config", lambda *a: {**real(*a), "tie_word_embeddings": True})  # the fault
    command = ["export", "tiny@eagle3", "--format", "vllm", "--out", str(tmp_path / "out")]
    assert main(command) == 1 and not (tmp_path / "out").exists()
    assert "tie_word_embeddings" in capsys.readouterr().err
    assert main([*command, "--force"]) == 1 and (tmp_path / "out").is_dir()
    assert "should not be served" in capsys.readouterr().err
