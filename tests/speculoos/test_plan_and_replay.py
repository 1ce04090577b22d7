"""`speculoos plan` and `speculoos replay` on a tiny base: figures, files, rows and error messages."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cli.commands.replay import find_recordings
from cli.main import main
from models.base import load_base
from models.checkpoints import save_draft
from models.medusa import MedusaConfig, MedusaHeads
from speculoos.settings import Settings
from tests.cli.test_cli import last_json
from tests.tools.recorded import record
from tracking import db, stored
from tracking.runs import group_runs, steps_after
from tracking.stored import RowFiles
from tracking.tables import Base, Checkpoint, Dataset, Evaluation

SMALL = ("--limit", "1", "--max-tokens", "16")


@pytest.fixture
def heads(home: Settings, tiny_base: Path, tmp_path: Path) -> str:
    """`tiny@heads`, a checkpoint with rows in the database."""
    base = load_base(tiny_base)
    torch.manual_seed(0)
    draft = MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 2), base)
    folder = save_draft(tmp_path / "heads", draft, {"base": "tiny"})
    with db.writing(home) as session:
        row = Base(name="tiny", source="folder", location=str(tiny_base), path=str(tiny_base), state="ready")
        session.add(row)
        session.flush()
        session.add(Checkpoint(name="heads", method="medusa", state="ready", base_id=row.id, path=str(folder)))
    return "tiny@heads"


def test_a_plan_is_printed_and_its_figures_plan_elsewhere(heads, tmp_path, capsys):
    costs = tmp_path / "costs.json"
    sizes = ("--batches", "1,2", "--layers", "1", "--rounds", "1")
    assert main(["plan", heads, *SMALL, *sizes, "--keep", str(costs), "--json"]) == 0
    result, _ = last_json(capsys)
    assert result["model"] == heads and set(result["plain"]["by_batch"]) == {"1", "2"}
    assert main(["plan", heads, *SMALL, "--machine", str(costs)]) == 0
    output = capsys.readouterr().out
    assert "chain 1" in output and "standalone layers" in output and result["standalone"][0]["layers"] == 1


def test_a_target_that_is_not_here_is_planned_from_files_alone(home, tmp_path, capsys):
    costs, rates = tmp_path / "costs.json", tmp_path / "evaluation.json"
    costs.write_text(json.dumps({"target_ms": {"1": {"1": 30, "3": 31}}, "draft_ms": {"chain": {"1": 1}}}))
    rates.write_text(json.dumps({"acceptance_by_depth": [0.5, 0.5]}))
    arguments = ["plan", "some-70b", "--machine", str(costs), "--acceptance", str(rates), "--json"]
    assert main(arguments) == 0
    result, _ = last_json(capsys)
    assert [row["tau"] for row in result["shapes"]] == [1.5, 1.75]


def test_a_draft_is_judged_on_recorded_outputs(heads, home, tiny_base, tmp_path, capsys):
    recordings = tmp_path / "said.jsonl"
    questions = [{"id": "q", "messages": [{"role": "user", "content": "a fox"}]}]
    record(load_base(tiny_base), 16, questions, recordings)
    assert main(["generate", "--model", heads, "--prompt", "x", "--max-tokens", "4", "--json"]) == 0
    capsys.readouterr()
    assert main(["replay", "run", str(recordings), "--draft", heads, "--show", "1", "--json"]) == 0
    result, _ = last_json(capsys)
    assert result["mean_accepted_length"] >= 1.0
    assert result["projected_speedup"] > 0
    with db.reading(home) as session:
        row = session.get(Evaluation, result["evaluation_id"])
        assert (row.state, row.name, row.result["replayed"]["file"]) == (
            "ready",
            "tiny@heads on said.jsonl",
            "said.jsonl",
        )
        (run,) = group_runs(session, result["chats"][0].partition("chat=")[2])
        records = steps_after(session, run.id)
        assert run.text == "".join(token["text"] for record in records for token in record["tokens"])
        assert run.summary["notices"][0].startswith("Replayed from said.jsonl")


def test_a_small_model_and_prompt_lookup_are_judged_without_a_base(heads, tiny_base, tmp_path, capsys):
    outputs = tmp_path / "outputs.jsonl"
    outputs.write_text('{"prompt": "a fox", "raw": true, "token_ids": [5, 6, 7, 5, 6, 7, 5, 6]}\n')
    arguments = ["replay", "run", str(outputs), "--json"]
    assert main([*arguments, "--draft", str(tiny_base), "--set", "depth=2"]) == 0
    assert "evaluation_id" not in last_json(capsys)[0], "nothing is stored of a draft that is in no list"
    assert main([*arguments, "--draft", "ngram", "--model", "tiny"]) == 0
    assert last_json(capsys)[0]["mean_accepted_length"] > 1.0


def test_answers_of_another_machine_come_from_the_store(home: Settings, tmp_path: Path) -> None:
    shared, folder = replace(home, store=f"file://{tmp_path}/store"), home.home / "datasets" / ("d" * 32)
    folder.mkdir(parents=True)
    (folder / "shard-00000.jsonl").write_text("{}\n")
    uploaded = RowFiles(shared).upload("datasets", folder.name, folder)
    with db.writing(home) as session:
        session.add(Dataset(id=folder.name, name="said", kind="conversations", state="ready", path=str(folder), rows=1))
        stored.save_stored(session, "datasets", folder.name, uploaded)
    shutil.rmtree(folder)
    recordings, name = find_recordings(shared, Path("said"))
    assert name == "said" and (recordings / "shard-00000.jsonl").read_text() == "{}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "tiny", "--batches", "1,x"], "Batch sizes: expected"),
        (["plan", "tiny", "--machine", "/nowhere.json"], "cannot be read"),
        (["plan", "nothing"], "There is no model 'nothing'"),
        (["replay", "run", "/nowhere.jsonl", "--draft", "ngram"], "there is no file or dataset"),
        (["replay", "run", "{file}", "--draft", "ngram"], "--model"),
        (["replay", "run", "{file}", "--draft", "tiny"], "BASE@DRAFT"),
        (["replay", "run", "{file}", "--draft", "ngram", "--model", "tiny", "--set", "tree=[[0]]"], "no option 'tree'"),
        (["replay", "run", "{file}", "--draft", "ngram", "--model", "tiny", "--set", "depth=0"], "whole number from 1"),
        (["replay", "run", "{file}", "--draft", "ngram", "--model", "tiny"], "no recording"),
    ],
)
def test_an_error_is_one_sentence(heads, tmp_path, capsys, arguments, message):
    file = tmp_path / "said.jsonl"
    file.write_text('{"prompt": "no answer"}\n')
    assert main([argument.replace("{file}", str(file)) for argument in arguments]) != 0
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err
