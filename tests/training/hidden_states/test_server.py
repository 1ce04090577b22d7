"""The reference server of hidden states: what it returns, and which requests it refuses with which message."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from models.base import load_base
from speculoos.errors import BadInput, Unavailable
from tests.tiny import make_tiny_base
from tests.tools.running import wait_for
from training.hidden_states.server import (
    MAX_BODY_BYTES,
    RequestLimits,
    ServerAddress,
    StatesEngine,
    create_app,
    listen,
    load_served_base,
)
from training.hidden_states.wire import HiddenStates, StatesRequest, compute_states, from_bytes

ROWS = [[5, 6, 7, 8, 9], [11, 12, 13]]


@pytest.fixture(scope="module")
def engine(tiny_base: Path) -> StatesEngine:
    return StatesEngine(
        *load_served_base(tiny_base, "float32", "cpu"), "tiny", RequestLimits(tokens=64, rows=4, waiting=2)
    )


@pytest.fixture
def client(engine: StatesEngine) -> TestClient:
    return TestClient(create_app(engine, 7862), base_url="http://127.0.0.1:7862", raise_server_exceptions=False)


def post(client: TestClient, **body: Any) -> Any:
    return client.post("/v1/hidden_states", json={"rows": ROWS, **body})


def test_it_says_which_base_it_runs(client: TestClient, engine: StatesEngine) -> None:
    info = client.get("/v1/base").json()
    assert info["base_sha256"] == engine.sha256 and len(engine.sha256) == 64
    assert (info["name"], info["hidden_size"], info["num_layers"]) == ("tiny", 32, 4)
    assert (info["dtype"], info["limits"]["tokens"]) == ("float32", 64)
    assert client.get("/healthz").json() == {"status": "ok"}


def test_it_gives_what_the_base_gives_without_padding(client: TestClient, tiny_base: Path) -> None:
    base = load_base(tiny_base)
    response = post(client, layers=[2, 0], positions=[[1, 4], []])
    assert response.headers["content-type"] == "application/vnd.safetensors"
    states = from_bytes(response.content)
    assert states.hidden.shape == (2, 32) and states.aux.shape == (8, 64)
    tokens = 0
    for row in ROWS:
        with torch.no_grad():
            hidden, (third, first) = base.forward_hidden(torch.tensor([row]), layers=(2, 0))
        expected = torch.cat([third, first], -1)[0]
        assert torch.allclose(states.aux[tokens : tokens + len(row)], expected, atol=1e-5)
        if len(row) == 5:
            assert torch.allclose(states.hidden, hidden[0, [1, 4]], atol=1e-5)
        tokens += len(row)


def test_all_positions_and_no_layers_are_the_default(client: TestClient) -> None:
    states = from_bytes(post(client).content)
    assert states.hidden.shape == (8, 32) and states.aux.shape == (8, 0)


def test_tensors_are_sent_in_their_own_dtype(tmp_path: Path) -> None:
    sent = HiddenStates(torch.randn(3, 4).bfloat16(), torch.randn(5, 0).bfloat16())
    received = from_bytes(sent.to_bytes())
    assert received.hidden.dtype == torch.bfloat16 and torch.equal(received.hidden, sent.hidden)
    assert len(sent.to_bytes()) < 3 * 4 * 2 + 200
    with pytest.raises(BadInput, match="not a safetensors file with hidden and aux"):
        from_bytes(b"\x80\x04pickle")


def test_rows_of_a_response_can_be_separated(tiny_base: Path) -> None:
    base = load_base(tiny_base)
    rows, positions = tuple(map(torch.tensor, ROWS)), (torch.tensor([0, 2]), torch.tensor([1]))
    request = StatesRequest(rows, (1,), positions)
    parts = compute_states(base, request).by_row(request)
    for row, row_positions, part in zip(rows, positions, parts, strict=True):
        alone = compute_states(base, StatesRequest((row,), (1,), (row_positions,)))
        assert torch.allclose(part.hidden, alone.hidden, atol=1e-5) and torch.allclose(part.aux, alone.aux, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "pattern"),
    [
        ({"rows": []}, 400, "rows: list should have at least 1 item"),
        ({"rows": [[]]}, 400, "rows: each takes 1 to 512 tokens, got 0"),
        (
            {"rows": [[1] * 40] * 2},
            400,
            "2 rows of up to 40 tokens are more than the 4 rows and 64 tokens .* lower batch_tokens",
        ),
        ({"rows": [[1]] * 5}, 400, "rows: 5 rows of up to 1 tokens are more than the 4 rows"),
        ({"rows": [[100000]]}, 400, "rows: token id 100000 is not of this base"),
        ({"rows": [[-1]]}, 400, "rows.0.0: input should be greater than or equal to 0"),
        ({"layers": [4]}, 400, "layers: this base has layers 0 to 3, got 4"),
        ({"layers": [1] * 100_000}, 400, "layers: at most 4 at once, got 100000"),
        ({"positions": [[0]]}, 400, "positions: expected a list for each of 2 rows, got 1"),
        ({"positions": [[5], []]}, 400, "positions: expected ascending positions of a row of 5 tokens"),
        ({"surprise": 1}, 400, "surprise: extra inputs are not permitted"),
        ({"base_sha256": "ab" * 32}, 409, "runs a base with weights .*, the request is for abababababab"),
    ],
)
def test_bad_requests_get_one_sentence(client: TestClient, body: dict[str, Any], status: int, pattern: str) -> None:
    response = post(client, **body)
    assert response.status_code == status
    message = response.json()["error"]["message"]
    assert __import__("re").search(pattern, message), message


def test_a_body_that_is_no_json_or_too_large_is_refused(client: TestClient) -> None:
    response = client.post("/v1/hidden_states", content=b"\x80\x04")
    assert response.status_code == 400 and "invalid JSON" in response.json()["error"]["message"]
    response = client.post("/v1/hidden_states", content=b" " * (MAX_BODY_BYTES + 1))
    assert response.status_code == 413


def test_a_web_page_is_refused(client: TestClient) -> None:
    assert client.get("/v1/base", headers={"Host": "evil.example:7862"}).status_code == 403
    assert client.get("/v1/base", headers={"Origin": "http://evil.example"}).status_code == 403


def test_requests_without_the_token_learn_nothing(engine: StatesEngine) -> None:
    client = TestClient(create_app(engine, 7862, "sesame"), base_url="http://box.lan:7862")
    assert client.get("/healthz").status_code == 200
    for headers in ({}, {"Authorization": "Bearer sesam"}, {"Authorization": "sesame"}):
        for response in (client.get("/v1/base", headers=headers), client.post("/v1/hidden_states", headers=headers)):
            assert response.status_code == 401 and engine.sha256 not in response.text
    assert client.get("/v1/base", headers={"Authorization": "Bearer sesame"}).status_code == 200


def test_requests_beyond_the_queue_get_status_503(engine: StatesEngine, client: TestClient) -> None:
    statuses: list[int] = []
    release = threading.Event()
    engine.device.submit(release.wait)
    threads = [threading.Thread(target=lambda: statuses.append(post(client).status_code)) for _ in range(5)]
    try:
        for thread in threads:
            thread.start()
        wait_for(lambda: len(statuses) >= 3, "three answers", seconds=60, every=0.01)
        assert statuses == [503] * 3
    finally:
        release.set()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200, 200, 503, 503, 503]


def test_missing_memory_is_no_temporary_error(engine: StatesEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("training.hidden_states.server.compute_states", broken)
    client = TestClient(create_app(engine, 7862), base_url="http://127.0.0.1:7862", raise_server_exceptions=False)
    response = post(client)
    assert response.status_code == 500 and "lower batch_tokens" in response.json()["error"]["message"]
    monkeypatch.setattr("training.hidden_states.server.compute_states", lambda *_: 1 / 0)
    response = post(client)
    assert response.status_code == 500 and "ZeroDivision" not in response.text


def test_it_listens_on_loopback_only_without_a_token() -> None:
    with pytest.raises(BadInput, match="would listen on 0.0.0.0 without a token; set SPECULOOS_FEATURES_TOKEN"):
        ServerAddress("0.0.0.0")
    with listen(ServerAddress(port=0)) as used, pytest.raises(Unavailable, match="choose another --port"):
        listen(ServerAddress(port=used.getsockname()[1]))


def test_the_command_names_a_folder_that_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cli.main import main

    monkeypatch.setenv("SPECULOOS_HOME", str(tmp_path / "home"))
    (tmp_path / "empty").mkdir()
    assert main(["features", "serve", str(tmp_path / "empty"), "--port", "0"]) == 2
    assert "no config.json" in capsys.readouterr().err
    assert main(["features", "serve", str(tmp_path / "empty"), "--host", "0.0.0.0"]) == 2
    assert "without a token" in capsys.readouterr().err


def test_a_base_that_cannot_be_trained_for_is_not_served(tmp_path: Path, edited: Callable[..., Path]) -> None:
    with pytest.raises(Exception, match="Cannot train a draft for"):
        load_served_base(edited(make_tiny_base(tmp_path / "base"), logits_soft_cap=3.0), "float32", "cpu")


@pytest.fixture
def edited() -> Callable[..., Path]:
    def edit(folder: Path, **changes: Any) -> Path:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        return folder

    return edit
