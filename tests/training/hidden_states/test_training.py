"""Trainings whose base runs in another process have the losses of a local base, even if the server is restarted."""

import json
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from models.head_only import HeadOnlyBase
from models.methods import train_config
from speculoos.errors import BadInput, Cancelled, NotFound, Unsupported
from speculoos.settings import HiddenStatesServer
from tests.tiny import make_tiny_base
from tests.tools.state_server import StateProcess
from tests.training.hidden_states.conftest import Notebook
from training.hidden_states.prefetcher import StatesLocation
from training.loop import Trainer, TrainResult, train
from training.resume_points import all_resume_points

pytestmark = pytest.mark.integration

SHORT = {"max_length": 256, "batch_tokens": 128, "max_steps": 8, "epochs": 0, "held_out": 0.2, "lr": 2e-3}
SHORT |= {"eval_every": 4, "save_every": 3, "samples": 0, "device": "cpu"}
KINDS: dict[str, dict[str, Any]] = {
    "eagle3 with a draft vocabulary": {"method": "eagle3", "draft_vocab_size": 100, "accumulate": 2},
    "eagle3 of two layers, nothing kept": {"method": "eagle3", "eagle_num_layers": 2, "cache_features_mb": 0},
    "peagle": {"method": "peagle", "draft_vocab_size": 100},
    "eagle": {"method": "eagle"},
    "dflash, which needs no head's input": {"method": "dflash", "block_size": 4, "max_anchors": 9},
    "dflash by distributions": {"method": "dflash", "block_size": 4, "dflash_loss": "kl", "cache_features_mb": 0},
    "medusa with tied heads": {"method": "medusa", "medusa_tie_lm_head": True, "cache_features_mb": 0},
}


@pytest.fixture
def run(tiny_base: Path, dataset: Path, tmp_path: Path):  # noqa: ANN201
    """run(name, notes, elsewhere=None, **settings): a training in the folder `name`."""

    def go(name: str, notes: Notebook, elsewhere: StatesLocation | None = None, **settings: Any) -> TrainResult:
        resume = settings.pop("resume_from", None)
        config = train_config(**{**SHORT, **settings})
        return train(config, tiny_base, dataset, tmp_path / name, resume, notes, states_location=elsewhere)

    return go


def remote_settings(server: StateProcess) -> dict[str, Any]:
    """Settings of a training that uses `server`."""
    return {"hidden_states": "here", "elsewhere": StatesLocation(server.server())}


def check_same(ours: Notebook, theirs: Notebook) -> None:
    assert len(ours.curve()) == len(theirs.curve()) == 8
    assert theirs.curve() == pytest.approx(ours.curve(), abs=1e-5)
    assert theirs.curve("eval/tau") == pytest.approx(ours.curve("eval/tau"), abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_equal_those_of_a_local_base(kind: str, run, served: StateProcess) -> None:
    here, away = Notebook(), Notebook()
    first = run("here", here, **KINDS[kind])
    second = run("away", away, **remote_settings(served), **KINDS[kind], hidden_states_ahead=3)
    check_same(here, away)
    ours, theirs = (load_file(result.folder / "model.safetensors") for result in (first, second))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-4) for name in ours)
    assert any("“here”, which runs" in line for line in away.lines)


@pytest.mark.parametrize("loss", ["ce", "kl"])
def test_a_standalone_draft_learns_from_a_server(loss: str, run, served: StateProcess, tmp_path: Path) -> None:
    small = make_tiny_base(tmp_path / "small", num_hidden_layers=1, seed=3)
    settings = {"method": "draft", "draft_path": str(small), "draft_loss": loss}
    here, away = Notebook(), Notebook()
    run("here", here, **settings)
    run("away", away, **remote_settings(served), **settings)
    check_same(here, away)
    with pytest.raises(Unsupported, match="the base's layers, which another server runs; set draft_path"):
        run("copy", away, **remote_settings(served), method="draft", draft_num_layers=2)
    sizes = {"draft_num_layers": 2, "draft_hidden_size": 16, "draft_init": "random", "draft_loss": loss}
    fresh = run("fresh", Notebook(), **remote_settings(served), method="draft", **sizes)
    assert json.loads((fresh.folder / "config.json").read_text())["hidden_size"] == 16


def test_the_training_holds_no_layer_of_the_base(
    tiny_base: Path, dataset: Path, tmp_path: Path, served: StateProcess, notes: Notebook
) -> None:
    config = train_config(**SHORT, method="eagle3", hidden_states="here")
    trainer = Trainer(
        config, tiny_base, dataset, tmp_path / "out", notes, {}, states_location=StatesLocation(served.server())
    )
    assert isinstance(trainer.base, HeadOnlyBase) and trainer.base.num_layers == 4
    assert not [name for name, _ in trainer.base.model.named_parameters() if "layers" in name]
    trainer.prefetcher.close()


class Killer(Notebook):
    """Kills the server after some steps, and starts it again once the training says that it waits."""

    def __init__(self, server: StateProcess, after: int):
        super().__init__()
        self.server, self.after, self.starting = server, after, None

    def metrics(self, step: int, values: dict[str, float]) -> None:
        super().metrics(step, values)
        if "train/loss" in values and step == self.after:
            self.server.kill()

    def log(self, message: str, level: str = "info") -> None:
        super().log(message, level)
        if message.startswith("Waiting"):
            assert level == "warning"
            self.starting = threading.Thread(target=self.server.start)
            self.starting.start()


def test_a_server_killed_and_started_again_in_mid_run_changes_nothing(run, tiny_base: Path, tmp_path: Path) -> None:
    with StateProcess(tiny_base, tmp_path / "home") as server:
        settings = {"method": "eagle3", "cache_features_mb": 0}
        here, away = Notebook(), Killer(server, after=4)
        run("here", here, **settings)
        run("away", away, **remote_settings(server), **settings)
        away.starting.join()
        check_same(here, away)
    waiting = "Waiting for the server of hidden states “here”: it cannot be reached."
    assert away.lines.count(waiting) == 1 or "the connection broke" in " ".join(away.lines)
    assert any(note.startswith("Waiting for the server of hidden states “here”") for note in away.notes)
    assert any("“here” answers again after" in line for line in away.lines)


class Stopper(Killer):
    """Requests a stop once the training waits; the server is not started again."""

    def log(self, message: str, level: str = "info") -> None:
        Notebook.log(self, message, level)

    def stop_requested(self) -> bool:
        return any(line.startswith("Waiting") for line in self.lines)


def test_a_stop_is_noticed_while_waiting_and_the_run_resumes_later(
    run, tiny_base: Path, tmp_path: Path, served: StateProcess
) -> None:
    settings = {"method": "medusa", "cache_features_mb": 0}
    here, later = Notebook(), Notebook()
    run("here", here, **settings)
    with StateProcess(tiny_base, tmp_path / "home") as server:
        stopped = Stopper(server, after=4)
        with pytest.raises(Cancelled, match="while waiting for hidden states of “here”"):
            run("away", stopped, **remote_settings(server), **settings)
    step = int(all_resume_points(tmp_path / "away")[-1].name.removeprefix("state-"))
    assert 4 <= step < 8, "what was learnt is saved"
    run("away", later, **remote_settings(served), **settings, resume_from=tmp_path / "away")
    assert stopped.curve()[:step] + later.curve() == pytest.approx(here.curve(), abs=1e-5)


def test_a_training_that_waits_at_its_start_can_be_stopped(run, tiny_base: Path, tmp_path: Path) -> None:
    server = StateProcess(tiny_base, tmp_path / "home")
    notes = Stopper(server, after=0)
    with pytest.raises(Cancelled):
        run("away", notes, **remote_settings(server), method="eagle3")
    assert notes.lines[0].startswith("Waiting for the server of hidden states “here”: it cannot be reached")


def test_another_base_is_refused_with_a_sentence(
    dataset: Path, tmp_path: Path, served: StateProcess, notes: Notebook
) -> None:
    config = train_config(**SHORT, method="medusa", hidden_states="here")
    other = make_tiny_base(tmp_path / "other", seed=5)
    with pytest.raises(BadInput, match="“here” runs other weights .* than this training's base"):
        train(config, other, dataset, tmp_path / "out", None, notes, states_location=StatesLocation(served.server()))


def test_a_server_that_comes_back_with_another_base_is_noticed(run, tiny_base: Path, tmp_path: Path) -> None:
    second = StateProcess(make_tiny_base(tmp_path / "other", seed=5), tmp_path / "home")
    with StateProcess(tiny_base, tmp_path / "home") as server, closing(second):
        notes = Killer(server, after=4)
        second._command[second._command.index("--port") + 1] = str(server.port)
        second.port, second.url = server.port, server.url
        notes.server.start = second.start
        with pytest.raises(BadInput, match="This server runs a base with weights .*…, the request is for"):
            run("away", notes, **remote_settings(server), method="medusa", cache_features_mb=0)
        notes.starting.join()


def test_a_token_is_required_and_sent(
    run, tiny_base: Path, tmp_path: Path, notes: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StateProcess(tiny_base, tmp_path / "home", token="open-sesame-please") as server:
        with pytest.raises(BadInput, match="rejected the request .401.") as error:
            run("away", notes, **remote_settings(server), method="medusa")
        assert "open-sesame" not in str(error.value)
        monkeypatch.setenv("MINE", "open-sesame-please")
        elsewhere = StatesLocation(server.server(key_env="MINE"))
        run("away", notes, elsewhere, hidden_states="here", method="medusa")
    assert len(notes.curve()) == 8


class TestStore:
    """Hidden states that are stored for later runs."""

    def test_a_second_training_needs_no_server(self, run, served: StateProcess, tmp_path: Path) -> None:
        here, first, second = Notebook(), Notebook(), Notebook()
        settings = {"method": "eagle3", "hidden_states_store": "kept"}
        run("here", here, method="eagle3")
        run("first", first, StatesLocation(served.server(), tmp_path / "kept"), hidden_states="here", **settings)
        run("second", second, StatesLocation(None, tmp_path / "kept"), hidden_states="stored", **settings)
        check_same(here, first)
        check_same(here, second)
        files = list((tmp_path / "kept").rglob("*.safetensors"))
        assert files and not [path for path in (tmp_path / "kept").rglob(".*")]
        files[0].unlink()
        with pytest.raises(NotFound, match="lacks the hidden states of 1 conversations"):
            run("third", second, StatesLocation(None, tmp_path / "kept"), hidden_states="stored", **settings)

    def test_a_local_base_fills_it_too_and_a_cut_file_is_written_again(self, run, tmp_path: Path) -> None:
        here, first, second = Notebook(), Notebook(), Notebook()
        run("here", here, method="eagle")
        elsewhere = StatesLocation(None, tmp_path / "kept")
        run("first", first, elsewhere, method="eagle", hidden_states_store="kept")
        cut = next((tmp_path / "kept").rglob("*.safetensors"))
        whole = cut.read_bytes()
        cut.write_bytes(whole[:-9])
        run("second", second, elsewhere, method="eagle", hidden_states_store="kept")
        check_same(here, first)
        check_same(here, second)
        assert cut.read_bytes() == whole

    def test_its_name_is_no_path(self) -> None:
        for name in ("../up", "/etc", ".hidden", "a/b", "x" * 200):
            with pytest.raises(BadInput, match="hidden_states_store: expected a name"):
                train_config("medusa", hidden_states_store=name)
        with pytest.raises(BadInput, match="“stored” needs the name of a store"):
            train_config("medusa", hidden_states="stored")


def test_an_unknown_server_is_reported(run, notes: Notebook) -> None:
    with pytest.raises(BadInput, match="there is no server named “gone”"):
        run("away", notes, method="medusa", hidden_states="gone")
    assert HiddenStatesServer("gone", "http://x").key == ""
