"""Clients of the API: keys are created, used and revoked; clients take turns; a closed connection frees its place."""

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.main import main
from serving.token import NO_TOKEN, ApiKeys
from speculoos.errors import BadInput, Conflict, NotFound, Unavailable
from speculoos.settings import Settings
from tests.serving.conftest import TOKEN, Served, serve, until
from tests.serving.test_live import make_run, post
from tests.tools.loops import run_async
from tracking import keys
from tracking.db import reading, writing
from tracking.tables import ApiKey, now

pytestmark = pytest.mark.integration

LIMIT = 8


@pytest.fixture(scope="module")
def small(model_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server where at most LIMIT requests of a client may wait."""
    yield from serve(tmp_path_factory.mktemp("home"), model_files, max_per_client=LIMIT, max_waiting=4 * LIMIT)


class Held:
    """Keeps the device of a server busy until the block ends."""

    def __init__(self, served: Served):
        self.served, self.gate = served, threading.Event()

    def __enter__(self) -> "Held":
        self.served.wait_idle(60)
        self.served.engine.queue.submit("upkeep", lambda _: self.gate.wait(110))
        until(lambda: self.served.engine.queue.busy)
        return self

    def __exit__(self, *_: Any) -> None:
        self.gate.set()
        self.served.wait_idle(60)


def make_key(served: Served, name: str) -> str:
    with writing(served.settings) as db:
        return keys.make_key(db, name)[1]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.parametrize("streaming", [False, True])
def test_clients_that_left_do_not_keep_their_places(small: Served, streaming: bool) -> None:
    """More requests than places are abandoned while they wait; then another one is not refused."""

    async def abandon() -> None:
        request = small.chat_request(stream=streaming, max_tokens=3)
        async with httpx.AsyncClient(base_url=small.url, headers=small.headers, timeout=120) as client:
            waiting = [asyncio.create_task(client.post("/v1/chat/completions", json=request)) for _ in range(LIMIT)]
            await asyncio.to_thread(until, lambda: small.engine.queue.waiting == LIMIT)
            refused = await client.post("/v1/chat/completions", json=request)
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
            assert "the limit of waiting requests" in refused.json()["error"]["message"]
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    with Held(small) as device:
        run_async(abandon())
        until(lambda: not small.engine.queue.waiting, 30)
        assert small.engine.queue.busy, "the device was busy all the time"
        answers: list[int] = []
        sender = threading.Thread(
            target=lambda: answers.append(
                small.client().post("/v1/chat/completions", json=small.chat_request(max_tokens=3)).status_code
            )
        )
        sender.start()
        until(lambda: small.engine.queue.waiting == 1)
        device.gate.set()
        sender.join(120)
    assert answers == [200]


def test_a_client_with_many_requests_does_not_make_another_wait_for_all(
    small: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key sends eight requests, another one sends the last one, and the web pages start a run."""
    greedy, modest = make_key(small, "greedy"), make_key(small, "modest")
    answer = small.engine.answer
    order: list[str | None] = []
    statuses: list[int] = []

    def recorded_answer(ref: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        order.append(request.user)
        return answer(ref, request, *arguments, **options)

    def send(name: str, secret: str) -> None:
        request = small.chat_request(max_tokens=30, user=name)
        with httpx.Client(base_url=small.url, headers=bearer(secret), timeout=120) as client:
            statuses.append(client.post("/v1/chat/completions", json=request).status_code)

    monkeypatch.setattr(small.engine, "answer", recorded_answer)
    with Held(small) as device:
        threads = [threading.Thread(target=send, args=("greedy", greedy)) for _ in range(LIMIT)]
        for thread in threads:
            thread.start()
        until(lambda: small.engine.queue.waiting == LIMIT)
        threads.append(threading.Thread(target=send, args=("modest", modest)))
        threads[-1].start()
        until(lambda: small.engine.queue.waiting == LIMIT + 1)
        assert small.engine.queue.waiting_clients == 2
        run_id = make_run(small, max_tokens=3)
        assert post(small, run_id).status_code == 202, "one client's many requests refuse nobody else"
        until(lambda: small.engine.queue.waiting_clients == 3)
        device.gate.set()
        for thread in threads:
            thread.join(120)
    assert order.index("modest") <= 2 and len(order) == LIMIT + 2
    assert statuses == [200] * (LIMIT + 1)


def test_a_key_grants_the_access_of_the_token_until_it_is_revoked(small: Served) -> None:
    secret = make_key(small, "laptop")
    assert secret.startswith("sk-speculoos-") and len(secret) > 50
    with httpx.Client(base_url=small.url, headers=bearer(secret), timeout=60) as client:
        assert client.get("/v1/models").status_code == 200
        assert client.post("/v1/chat/completions", json=small.chat_request(max_tokens=3)).status_code == 200
        with writing(small.settings) as db:
            keys.revoke(db, "laptop")
        until(lambda: client.get("/v1/models").status_code == 401, 30)
        refused = client.get("/v1/models")
    assert refused.json()["error"] == {
        "message": NO_TOKEN,
        "type": "authentication_error",
        "param": None,
        "code": "invalid_api_key",
    }
    with httpx.Client(base_url=small.url, headers=bearer(TOKEN)) as client:
        assert client.get("/v1/models").status_code == 200


@pytest.mark.parametrize("secret", ["sk-speculoos-wrong", "sk-speculoos-", "sk-speculoos-\xe4", "wrong"])
def test_an_invalid_key_is_refused(small: Served, secret: str) -> None:
    headers = {b"Authorization": f"Bearer {secret}".encode("latin-1")}
    response = httpx.get(f"{small.url}/v1/models", headers=headers)
    assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"


def test_only_a_hash_of_a_key_is_stored(small: Served) -> None:
    secret = make_key(small, "hashed")
    with reading(small.settings) as db:
        row = db.query(ApiKey).filter_by(name="hashed").one()
    assert len(row.sha256) == 64 and secret.startswith(row.hint) and len(row.hint) == 16
    for file in small.settings.home.rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes(), file


def test_the_use_of_a_key_is_written_once_a_minute(small: Served) -> None:
    secret, api_keys = make_key(small, "busy"), ApiKeys(small.settings)

    def used() -> Any:
        api_keys.find(secret)
        api_keys.store_uses()
        with reading(small.settings) as db:
            return db.query(ApiKey).filter_by(name="busy").one().last_used_at

    first = used()
    assert first and used() == first
    with writing(small.settings) as db:
        db.query(ApiKey).filter_by(name="busy").one().last_used_at = now() - timedelta(seconds=61)
    assert used() >= first


def test_a_key_cannot_be_checked_while_the_database_is_away_and_the_token_can(
    small: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise Unavailable("The database is away.")

    monkeypatch.setattr(keys, "find_live", fail)
    response = httpx.get(f"{small.url}/v1/models", headers=bearer("sk-speculoos-x"))
    assert response.status_code == 503 and response.json()["error"]["message"] == "The database is away."
    assert httpx.get(f"{small.url}/v1/models", headers=bearer(TOKEN)).status_code == 200


def test_names_of_keys(home: Settings) -> None:
    with writing(home) as db:
        keys.make_key(db, " mine ")
        with pytest.raises(Conflict, match="'mine'"):
            keys.make_key(db, "mine")
        with pytest.raises(BadInput):
            keys.make_key(db, "  ")
        first = keys.revoke(db, "mine")
        with pytest.raises(NotFound, match="no live key 'mine'"):
            keys.revoke(db, "mine")
        second, _ = keys.make_key(db, "mine")
        assert [key.id for key in keys.list_keys(db)] == [second.id]
        assert [key.id for key in keys.list_keys(db, revoked=True)] == [first.id, second.id]


def test_keys_on_the_command_line(home: Settings, capsys: pytest.CaptureFixture) -> None:
    def run(*arguments: str) -> Any:
        assert main(["keys", *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    key = run("add", "script")
    assert key["key"].startswith(key["hint"]) and "sha256" not in key
    (listed,) = run("list")
    assert listed["name"] == "script" and "key" not in listed and listed["last_used_at"] is None
    assert ApiKeys(home).find(key["key"]) == key["id"]
    assert run("revoke", "script")["revoked_at"] and run("list") == []
    assert run("list", "--revoked")[0]["id"] == key["id"]
    assert ApiKeys(home).find(key["key"]) == ""

    assert main(["keys", "add", "people"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("sk-speculoos-") and "not be shown again" in captured.err
    assert main(["keys"]) == 0
    table = capsys.readouterr().out
    assert "people" in table and "never" in table and captured.out.strip() not in table
    assert main(["keys", "revoke", "nobody"]) == NotFound("").exit_code
    assert "no live key 'nobody'" in capsys.readouterr().err
