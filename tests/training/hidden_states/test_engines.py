"""The client of vLLM against a stand-in that answers in its form."""

from pathlib import Path
from typing import Any

import pytest
import torch

from models.base import LoadedBase, load_base
from models.methods import train_config
from speculoos.errors import BadInput
from tests.tiny import make_tiny_base
from tests.training.hidden_states.conftest import Notebook
from tests.training.hidden_states.stand_ins import StandIn, VllmStandIn
from tests.training.hidden_states.test_training import SHORT, check_same
from training.hidden_states.prefetcher import StatesLocation
from training.loop import train

IDS = [2, 2, 1, 4]
"""As speculators would start vLLM for four layers: what goes into layers 2, n // 2, n − 3, and the last one's output;
this training reads layers (1, 1, 0)."""


@pytest.fixture
def unshared_base(tiny_base: Path) -> LoadedBase:
    """Not shared between tests, because hooks are put on it."""
    return load_base(tiny_base)


@pytest.fixture
def run(tiny_base: Path, dataset: Path, tmp_path: Path):  # noqa: ANN201
    def go(notes: Notebook, engine: StandIn | None = None, **settings: Any) -> None:
        source = {"hidden_states": "engine"} if engine else {}
        location = StatesLocation(engine.server(**settings.pop("server", {}))) if engine else None
        config = train_config(**{**SHORT, **source, **settings})
        train(config, tiny_base, dataset, tmp_path / f"{bool(engine)}", None, notes, states_location=location)

    return go


@pytest.mark.parametrize("method", ["eagle3", "medusa"])
def test_training_with_vllm_equals_training_with_the_base(
    method: str, run, unshared_base: LoadedBase, tmp_path: Path
) -> None:
    here, away = Notebook(), Notebook()
    run(here, method=method)
    with VllmStandIn(unshared_base, tmp_path / "shared", IDS) as engine:
        run(away, engine, method=method)
    check_same(here, away)
    assert away.lines[0] == (
        "Hidden states come from vLLM “engine”, which runs tiny: 6 of 6 tokens it chose are those of this base's head."
    )
    assert not list((tmp_path / "shared").iterdir()), "what was read is removed, its lock too"


def test_vllm_in_half_precision_with_a_key_and_a_name(
    run, unshared_base: LoadedBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, away = Notebook(), Notebook()
    run(here, method="eagle3")
    monkeypatch.setenv("MINE", "sesame-key")
    with VllmStandIn(unshared_base, tmp_path / "shared", IDS, torch.bfloat16, key="sesame-key") as engine:
        with pytest.raises(BadInput, match="rejected the request .401.: Unauthorized"):
            run(away, engine, method="eagle3")
        with pytest.raises(BadInput, match="returned an error: The model does not exist"):
            run(away, engine, method="eagle3", server={"key_env": "MINE", "model": "other"})
        run(away, engine, method="eagle3", server={"key_env": "MINE", "model": "tiny"})
    assert away.curve() == pytest.approx(here.curve(), rel=0.02)


def test_an_engine_with_another_model_is_detected(run, tmp_path: Path, notes: Notebook) -> None:
    other = load_base(make_tiny_base(tmp_path / "other", seed=9))
    with (
        VllmStandIn(other, tmp_path / "shared", IDS) as engine,
        pytest.raises(BadInput, match="“engine” chose the token .* in [0-2] of 6 rows: it runs another base"),
    ):
        run(notes, engine, method="medusa")


def test_vllm_with_other_layers_is_refused_with_the_right_ones(
    run, unshared_base: LoadedBase, tmp_path: Path, notes: Notebook
) -> None:
    with (
        VllmStandIn(unshared_base, tmp_path / "shared", [2, 4]) as engine,
        pytest.raises(BadInput, match="sends 2 layers, expected are 3 and the last") as error,
    ):
        run(notes, engine, method="eagle3")
    assert error.value.hint == "Start it with eagle_aux_hidden_state_layer_ids [2, 2, 1, 4]."
    with (
        VllmStandIn(unshared_base, tmp_path / "shared", [2, 1]) as engine,
        pytest.raises(BadInput, match="runs another base, or sends other layers"),
    ):
        run(notes, engine, method="medusa")


def test_a_folder_that_is_not_shared_is_reported(
    run, unshared_base: LoadedBase, tmp_path: Path, notes: Notebook
) -> None:
    with VllmStandIn(unshared_base, tmp_path / "shared", IDS) as engine:
        engine.reported_folder = tmp_path / "elsewhere"
        with pytest.raises(BadInput, match="which does not exist here") as error:
            run(notes, engine, method="medusa")
    assert "shared_storage_path must be the same folder" in error.value.hint


@pytest.mark.parametrize("path", [None, 7, "x\0y"])
def test_an_invalid_path_is_refused(path: Any, run, unshared_base: LoadedBase, tmp_path: Path, notes: Notebook) -> None:
    with VllmStandIn(unshared_base, tmp_path / "shared", IDS) as engine:
        answer = engine.answer

        def odd(url_path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            status, response = answer(url_path, body)
            return status, response | (
                {"kv_transfer_params": {"hidden_states_path": path}} if "choices" in response else {}
            )

        engine.answer = odd
        with pytest.raises(BadInput, match="did not return a hidden states file"):
            run(notes, engine, method="medusa")


def test_hidden_states_of_another_width_are_refused(run, tmp_path: Path, notes: Notebook) -> None:
    other = load_base(make_tiny_base(tmp_path / "other", hidden_size=64))
    with (
        VllmStandIn(other, tmp_path / "shared", IDS) as engine,
        pytest.raises(BadInput, match="sends hidden states of 4 layers and 64 numbers; this base's have 32"),
    ):
        run(notes, engine, method="medusa")


def test_a_file_of_more_layers_than_any_training_needs_is_not_loaded(
    run, unshared_base: LoadedBase, tmp_path: Path, notes: Notebook
) -> None:
    with (
        VllmStandIn(unshared_base, tmp_path / "shared", IDS * 2) as engine,
        pytest.raises(BadInput, match="sends hidden states of 8 layers and 32 numbers; .* of 5 layers at most"),
    ):
        run(notes, engine, method="medusa")


def test_a_file_of_other_tokens_is_refused(run, unshared_base: LoadedBase, tmp_path: Path, notes: Notebook) -> None:
    with VllmStandIn(unshared_base, tmp_path / "shared", IDS) as engine:
        write_states = engine._write_states
        engine._write_states = lambda ids, path: write_states([*ids[:-1], 7], path)
        with pytest.raises(BadInput, match="holds hidden states of other tokens"):
            run(notes, engine, method="medusa")
    assert list((tmp_path / "shared").glob("*.safetensors")), "a file that is not proved ours is not removed"
