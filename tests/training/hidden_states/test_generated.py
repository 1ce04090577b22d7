"""Medusa heads learn from hidden states that a generation stored, without a forward of the base."""

import json
from pathlib import Path

import pytest
import torch

from corpus.conversations import GenerateOptions
from corpus.generate_local import generate_local
from corpus.importing import import_prompts
from models.base import LoadedBase, load_base
from models.identity import weights_sha256
from models.methods import train_config
from speculoos.errors import NotFound
from speculoos.reporting import SilentReporter
from tests.training.hidden_states.conftest import Notebook
from tests.training.hidden_states.test_training import SHORT, check_same
from training.hidden_states.prefetcher import StatesLocation
from training.hidden_states.states_store import StatesStore
from training.hidden_states.wire import StatesRequest, compute_states
from training.loop import train

PROMPTS = [{"prompt": f"the quick brown fox {number}"} for number in range(10)]
PROMPTS += [{"turns": [f"count to {number}", "and on"]} for number in range(6)]


@pytest.fixture(scope="module")
def generated(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dataset `answers` and the store `kept`."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    import_prompts(folder / "in.jsonl", folder / "prompts", SilentReporter())
    base = load_base(tiny_base)
    options = GenerateOptions(max_tokens=24, batch_size=5)
    states = store(folder, base, tiny_base)
    generate_local(base, folder / "prompts", folder / "answers", options, SilentReporter(), states_store=states)
    return folder


def store(folder: Path, base: LoadedBase, path: Path) -> StatesStore:
    return StatesStore(folder / "kept", weights_sha256(path), base.dtype, base.hidden_size)


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for file in (folder / "answers").glob("*.jsonl") for line in file.open()]


def test_stored_states_equal_those_of_one_forward_over_the_row(generated: Path, tiny_base: Path) -> None:
    base = load_base(tiny_base)
    states_store = store(generated, base, tiny_base)
    for row in rows(generated):
        positions = [at for start, end in row["loss_spans"] for at in range(start - 1, end - 1)]
        request = StatesRequest((torch.tensor(row["token_ids"]),), (), (torch.tensor(positions[1:]),))
        states = states_store.read(request)
        assert states is not None
        torch.testing.assert_close(states.hidden, compute_states(base, request).hidden, atol=1e-5, rtol=1e-4)
        other_positions = torch.tensor([positions[0] - 1, positions[0]])
        assert states_store.read(StatesRequest(request.rows, (), (other_positions,))) is None
        assert states_store.read(StatesRequest(request.rows, (1,), request.positions)) is None
    assert len(rows(generated)) == len(PROMPTS)


def test_heads_learn_the_same_from_stored_states_without_the_base(
    generated: Path, tiny_base: Path, tmp_path: Path
) -> None:
    here, stored = Notebook(), Notebook()
    folders = tiny_base, generated / "answers"
    train(train_config("medusa", **SHORT), *folders, tmp_path / "here", reporter=here)
    config = train_config("medusa", **SHORT, hidden_states="stored", hidden_states_store="kept")
    train(
        config, *folders, tmp_path / "stored", reporter=stored, states_location=StatesLocation(None, generated / "kept")
    )
    check_same(here, stored)


def test_other_methods_need_the_base(generated: Path, tiny_base: Path, tmp_path: Path) -> None:
    config = train_config("eagle3", **SHORT, hidden_states="stored", hidden_states_store="kept")
    with pytest.raises(NotFound, match="lacks the hidden states"):
        train(
            config,
            tiny_base,
            generated / "answers",
            tmp_path / "out",
            states_location=StatesLocation(None, generated / "kept"),
        )
