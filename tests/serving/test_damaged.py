"""A base or draft with 512 flipped bytes, or a draft replaced by another, gives clients a clear error, not 200 with an
empty text."""

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
def mutable(server: Served, model_files: Path) -> Iterator[Served]:
    """A server whose model files a test may change; they are restored afterwards."""
    yield server
    shutil.copytree(model_files, server.root, dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("name", "reason"), [("cycle", "the weights changed"), ("right", "model.safetensors is damaged")]
)
def test_a_damaged_model_is_refused_by_name_and_the_others_serve(mutable: Served, name: str, reason: str) -> None:
    flip(mutable.root / name / "model.safetensors")
    with mutable.client() as client:
        response = client.post("/v1/chat/completions", json=mutable.chat_request("cycle@right"))
        assert response.status_code == 500 and response.json()["error"]["code"] == "damaged"
        message = response.json()["error"]["message"]
        assert reason in message and "speculoos verify" in message and "\n" not in message
        assert (
            client.post("/v1/chat/completions", json=mutable.chat_request("org/cycle2", max_tokens=2)).status_code
            == 200
        )
        assert (mutable.settings.home / "sums.json").is_file()


def test_a_draft_that_was_swapped_together_with_its_sums_is_refused(mutable: Served) -> None:
    shutil.copytree(mutable.root / "wrong", mutable.root / "right", dirs_exist_ok=True)
    with mutable.client() as client:
        response = client.post("/v1/chat/completions", json=mutable.chat_request("cycle@right"))
        assert response.status_code == 500 and response.json()["error"]["code"] == "damaged"
        assert "model.safetensors is not the file that was trained" in response.json()["error"]["message"]
        assert (
            client.post("/v1/chat/completions", json=mutable.chat_request("cycle@wrong", max_tokens=2)).status_code
            == 200
        )
