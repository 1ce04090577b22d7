"""The password in front of the pages."""

from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app import auth
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tests.tools.loops import run_async


@pytest.fixture
def client(home: Settings, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr(auth, "PAUSE", 0)
    app = FastAPI()

    @app.get("/{path:path}")
    def page(path: str) -> str:
        return "secret page"

    settings = replace(home, password="cinnamon")
    guarded = FastAPI()

    @guarded.get("/healthz")
    def healthz() -> str:
        return "ok"

    auth.add_login(guarded, settings)
    guarded.mount("/", app)
    return TestClient(guarded, base_url="http://127.0.0.1:7860", follow_redirects=False)


def log_in(client: TestClient, password: str = "cinnamon", target: str = "/jobs?id=1"):
    return client.post("/login", data={"password": password, "next": target})


def test_pages_lead_to_the_login_and_back_to_where_one_was_going(client: TestClient) -> None:
    answer = client.get("/jobs?id=1")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2Fjobs%3Fid%3D1"
    assert 'value="/jobs?id=1"' in client.get(answer.headers["location"]).text
    answer = log_in(client)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?id=1")
    assert client.get("/jobs?id=1").text == '"secret page"'


@pytest.mark.parametrize("path", ["/api/runs/1/events", "/gradio_api/queue/data", "/gradio_api/file=x"])
def test_scripts_are_refused_rather_than_led_to_a_page(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 401


def test_posting_without_a_session_is_refused(client: TestClient) -> None:
    assert client.post("/gradio_api/run/predict", json={}).status_code == 401


def test_health_answers_without_a_password(client: TestClient) -> None:
    assert client.get("/healthz").status_code == 200


def test_a_wrong_password_gives_no_cookie(client: TestClient) -> None:
    answer = log_in(client, "nutmeg")
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "not the password" in answer.text


def test_the_cookie_is_for_this_site_and_not_for_scripts(client: TestClient) -> None:
    cookie = log_in(client).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


@pytest.mark.parametrize("target", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_the_login_never_leads_elsewhere(client: TestClient, target: str) -> None:
    assert log_in(client, target=target).headers["location"] == "/"


def test_a_target_cannot_break_out_of_the_form(client: TestClient) -> None:
    page = client.get("/login", params={"next": '/"><img src=x onerror=alert(1)>'}).text
    assert "<img src=x" not in page


@pytest.mark.parametrize("value", ["", "9999999999.", "9999999999.0000", "nonsense", "-1.x", "é.é"])
def test_a_made_up_cookie_is_refused(client: TestClient, value: str) -> None:
    sessions = auth.Sessions(b"key", "cinnamon")
    assert not sessions.is_valid(value)


def test_a_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = auth.Sessions(b"key", "cinnamon")
    value = sessions.issue()
    assert sessions.is_valid(value)
    later = auth.time.time() + auth.SECONDS + 1
    monkeypatch.setattr(auth.time, "time", lambda: later)
    assert not sessions.is_valid(value)


def test_a_new_password_ends_every_session() -> None:
    assert not auth.Sessions(b"key", "clove").is_valid(auth.Sessions(b"key", "cinnamon").issue())


def test_the_key_survives_a_restart_and_only_its_owner_reads_it(home: Settings) -> None:
    assert auth.session_key(home) == auth.session_key(home)
    assert (home.home / "secrets" / "session-key").stat().st_mode & 0o777 == 0o600


def test_other_machines_need_a_password(home: Settings) -> None:
    with pytest.raises(BadInput, match="SPECULOOS_PASSWORD"):
        auth.check_bind(replace(home, host="0.0.0.0"))
    auth.check_bind(replace(home, host="0.0.0.0", password="x"))
    auth.check_bind(home)


def test_a_start_without_the_password_that_is_needed_is_one_sentence(
    home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from app.main import main

    monkeypatch.setenv("SPECULOOS_HOST", "0.0.0.0")
    assert main() == 2
    assert "SPECULOOS_PASSWORD" in capsys.readouterr().err


def test_the_login_comes_before_the_pages_own_routes(home: Settings) -> None:
    """Gradio has a /login of its own, which would take the form's place."""
    from app.main import make_app

    client = TestClient(make_app(replace(home, password="cinnamon")), base_url="http://127.0.0.1:7860")
    assert 'name="password"' in client.get("/jobs").text
    assert client.get("/gradio_api/info").status_code == 401
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403


def test_a_flood_of_wrong_passwords_closes_the_login_for_a_while(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    import httpx

    monkeypatch.setattr(auth, "PAUSE", 60)
    app = FastAPI()
    auth.add_login(app, replace(home, password="cinnamon"))

    async def tries() -> tuple[list[int], int, int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7860") as client:
            wrong = [asyncio.create_task(client.post("/login", data={"password": str(i)})) for i in range(60)]
            refused, waiting = await asyncio.wait(wrong, timeout=2)
            amid = await client.post("/login", data={"password": "cinnamon"})
            [task.cancel() for task in waiting]
            await asyncio.wait(waiting)
            after = await client.post("/login", data={"password": "cinnamon"})
        return [task.result().status_code for task in refused], amid.status_code, after.status_code

    refused, amid, after = run_async(tries())
    assert refused == [429] * (60 - auth.MOST_WAITING)
    assert (amid, after) == (429, 303)


def test_many_wrong_passwords_at_once_wait_for_each_other(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio
    import time

    import httpx

    monkeypatch.setattr(auth, "PAUSE", 0.1)
    app = FastAPI()
    auth.add_login(app, replace(home, password="cinnamon"))

    async def tries() -> tuple[float, float]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7860") as client:
            began = time.monotonic()
            wrong = [asyncio.create_task(client.post("/login", data={"password": str(i)})) for i in range(6)]
            await asyncio.sleep(0.02)
            right = await client.post("/login", data={"password": "cinnamon"})
            right_after = time.monotonic() - began
            await asyncio.gather(*wrong)
        assert right.status_code == 303
        return right_after, time.monotonic() - began

    right_after, all_after = run_async(tries())
    assert all_after >= 0.55
    assert right_after < all_after / 2
