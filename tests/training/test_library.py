"""docs/library.md: a loaded model becomes a draft in training under Hugging Face's Trainer, and is restored."""

import re
from pathlib import Path

import torch

from training.convert import convert

LIBRARY = Path(__file__).resolve().parents[2] / "docs" / "library.md"


def test_the_training_example_runs_and_restores_what_was_trained(tiny_base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", LIBRARY.read_text(encoding="utf-8"), flags=re.DOTALL)
    names = {"BASE": tiny_base}
    exec(compile(next(b for b in blocks if "TrainingArguments" in b), "library.md", "exec"), names)
    trained, restored = names["heads"].draft.state_dict(), names["restored"].state_dict()
    assert trained.keys() == restored.keys() and all(torch.equal(trained[k].cpu(), restored[k]) for k in trained)
    fresh = convert(names["base"], "medusa", medusa_num_heads=2, medusa_tie_lm_head=True).draft.state_dict()
    assert any(not torch.equal(trained[k].cpu(), fresh[k]) for k in trained)
    assert (tmp_path / "my-heads" / "README.md").exists()
