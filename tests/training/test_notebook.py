"""recipes/train.ipynb runs from top to bottom: on a tiny base, with a few steps."""

import json
from pathlib import Path

import torch

from models.checkpoints import stored_tensors

NOTEBOOK = Path(__file__).resolve().parents[2] / "recipes" / "train.ipynb"


def test_the_notebook_trains_resumes_restores_and_generates(tiny_base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert cells[0]["metadata"] == {"tags": ["parameters"]}
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    small = {"BASE": tiny_base, "FOLDER": tmp_path, "QUESTIONS": 4, "TOKENS": 12, "STEPS": 1}
    names: dict = {}
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"train.ipynb, cell {number}", "exec"), names)
        if number == 0:
            assert small.keys() < names.keys()
            names |= {**small, "SETTINGS": {**names["SETTINGS"], "draft_vocab_size": 64}}
    saved, restored = stored_tensors(names["heads"].draft), stored_tensors(names["restored"].draft)
    assert names["trainer"].state.global_step == 2 and names["answer"].token_ids == names["plain"]
    assert saved.keys() == restored.keys()
    assert any(not torch.equal(saved[name], restored[name]) for name in saved), "the last cell trains on"
    assert [*tmp_path.glob("run/checkpoint-*")] and (tmp_path / "heads" / "SHA256SUMS").exists()
