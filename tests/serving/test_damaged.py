"""512 flipped bytes in a base or a draft, or a draft put in the place of another, are one sentence to a client, not 200
with an empty text."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models import hostile
from tests.serving.conftest import Served, serve
from tests.tools.damage import flip

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server(model_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("damaged")
    yield from serve(folder / "home", hostile.copy(model_files, folder / "models"))


@pytest.fixture
def own(server: Served, model_files: Path) -> Iterator[Served]:
    """A server whose model files may be spoilt."""
    yield server
    shutil.copytree(model_files, server.root, dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("name", "says"), [("cycle", "the weights changed"), ("right", "model.safetensors is damaged")]
)
def test_a_damaged_model_is_refused_by_name_and_the_others_serve(own: Served, name: str, says: str) -> None:
    flip(own.root / name / "model.safetensors")
    with own.client() as client:
        answer = client.post("/v1/chat/completions", json=own.ask("cycle@right"))
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "damaged"
        message = answer.json()["error"]["message"]
        assert says in message and "speculoos verify" in message and "\n" not in message
        assert client.post("/v1/chat/completions", json=own.ask("org/cycle2", max_tokens=2)).status_code == 200
        assert (own.settings.home / "sums.json").is_file()


def test_a_draft_that_was_swapped_together_with_its_sums_is_refused(own: Served) -> None:
    shutil.copytree(own.root / "wrong", own.root / "right", dirs_exist_ok=True)
    with own.client() as client:
        answer = client.post("/v1/chat/completions", json=own.ask("cycle@right"))
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "damaged"
        assert "model.safetensors is not the file that was trained" in answer.json()["error"]["message"]
        assert client.post("/v1/chat/completions", json=own.ask("cycle@wrong", max_tokens=2)).status_code == 200
