"""Login with a password or a printed link."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select

from app import auth
from speculoos import login_links
from speculoos.errors import BadInput, Unavailable
from speculoos.settings import Settings, load
from tests.tools.loops import run_async
from tracking.db import reading, writing
from tracking.logins import Sessions, session_key
from tracking.tables import Login, now


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


def log_in(client: TestClient, password: str = "cinnamon", target: str = "/runs?id=1"):
    return client.post("/login", data={"password": password, "next": target})


def test_pages_lead_to_the_login_and_back_to_where_one_was_going(client: TestClient) -> None:
    response = client.get("/runs?id=1")
    assert response.status_code == 303
    assert response.headers["location"] == "/login?next=%2Fruns%3Fid%3D1"
    assert 'value="/runs?id=1"' in client.get(response.headers["location"]).text
    response = log_in(client)
    assert (response.status_code, response.headers["location"]) == (303, "/runs?id=1")
    assert client.get("/runs?id=1").text == '"secret page"'


@pytest.mark.parametrize("path", ["/api/runs/1/events", "/gradio_api/queue/data", "/gradio_api/file=x"])
def test_scripts_are_refused_rather_than_led_to_a_page(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 401


def test_posting_without_a_session_is_refused(client: TestClient) -> None:
    assert client.post("/gradio_api/run/predict", json={}).status_code == 401


def test_health_answers_without_a_password(client: TestClient) -> None:
    assert client.get("/healthz").status_code == 200


def test_a_wrong_password_gives_no_cookie(client: TestClient) -> None:
    response = log_in(client, "nutmeg")
    assert response.status_code == 401
    assert "set-cookie" not in response.headers
    assert "Wrong password" in response.text


def test_the_cookie_is_for_this_site_and_not_for_scripts(client: TestClient) -> None:
    cookie = log_in(client).headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


@pytest.mark.parametrize(
    "target", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "//[", "//\u2100"]
)
def test_the_login_never_leads_elsewhere(client: TestClient, target: str) -> None:
    assert log_in(client, target=target).headers["location"] == "/"


def test_a_target_cannot_break_out_of_the_form(client: TestClient) -> None:
    page = client.get("/login", params={"next": '/"><img src=x onerror=alert(1)>'}).text
    assert "<img src=x" not in page


@pytest.mark.parametrize("value", ["", "9999999999.", "9999999999.0000", "nonsense", "é.é", "x" * 5000])
def test_a_made_up_cookie_is_refused(home: Settings, value: str) -> None:
    assert run_async(sessions_of(home).find(value)) is None


def sessions_of(home: Settings, password: str = "cinnamon") -> Sessions:
    return Sessions(replace(home, password=password))


def test_a_login_holds_over_a_restart_and_ends_in_time(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    value = sessions_of(home).begin("Ada")
    visitor = run_async(sessions_of(home).find(value))
    assert visitor.user == "Ada"
    assert timedelta(days=13) < visitor.ends_at - now() < timedelta(days=15)
    with writing(home) as session:
        session.scalars(select(Login)).one().ends_at = now() - timedelta(seconds=1)
    assert run_async(sessions_of(home).find(value)) is None


def test_expired_rows_are_removed_when_the_next_one_logs_in(home: Settings) -> None:
    sessions = sessions_of(home)
    sessions.begin("old")
    with writing(home) as session:
        session.scalars(select(Login)).one().ends_at = now() - timedelta(seconds=1)
    sessions.begin("new")
    with reading(home) as session:
        assert [login.user for login in session.scalars(select(Login))] == ["new"]


def test_a_new_password_ends_every_login(home: Settings) -> None:
    value = sessions_of(home, "clove").begin()
    assert run_async(sessions_of(home, "clove").find(value))
    assert run_async(sessions_of(home, "cinnamon").find(value)) is None


def test_the_database_does_not_reveal_a_cookie(home: Settings) -> None:
    value = sessions_of(home).begin()
    with reading(home) as session:
        login = session.scalars(select(Login)).one()
    assert value not in login.id
    assert run_async(sessions_of(home).find(login.id)) is None


def test_logging_out_ends_the_login_for_a_copy_of_the_cookie_too(client: TestClient) -> None:
    log_in(client)
    stolen = dict(client.cookies)
    assert client.get("/runs").status_code == 200
    response = client.post("/logout")
    assert (response.status_code, response.headers["location"]) == (303, "/login")
    assert not client.cookies
    client.cookies.update(stolen)
    assert client.get("/runs").status_code == 303
    assert client.post("/gradio_api/run/predict", json={}).status_code == 401


def test_an_unavailable_database_does_not_log_out_known_visitors(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = sessions_of(home)
    value, unknown = sessions.begin(), sessions.begin()
    assert run_async(sessions.find(value))
    monkeypatch.setattr("tracking.logins.FRESH", 0)
    monkeypatch.setattr("tracking.logins.reading", raising(Unavailable("The database cannot be used now.")))
    assert run_async(sessions.find(value))
    with pytest.raises(Unavailable):
        run_async(sessions.find(unknown))


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_the_name_given_at_the_login_is_kept_and_checked(client: TestClient, home: Settings) -> None:
    assert client.post("/login", data={"password": "cinnamon", "name": "x" * 81}).status_code == 400
    response = client.post("/login", data={"password": "cinnamon", "name": "<b>\u202eAda"})
    assert response.status_code == 400
    assert "&lt;b&gt;" in response.text and "<b>" not in response.text
    assert client.post("/login", data={"password": "cinnamon", "name": "  Ada Lovelace "}).status_code == 303
    with reading(home) as session:
        assert session.scalars(select(Login)).one().user == "Ada Lovelace"


def test_the_key_survives_a_restart_and_only_its_owner_reads_it(home: Settings) -> None:
    assert session_key(home) == session_key(home)
    assert (home.home / "secrets" / "session-key").stat().st_mode & 0o777 == 0o600


def test_other_machines_need_a_password(home: Settings) -> None:
    with pytest.raises(BadInput, match="SPECULOOS_PASSWORD"):
        auth.check_bind(replace(home, host="0.0.0.0"))
    auth.check_bind(replace(home, host="0.0.0.0", password="x"))
    auth.check_bind(home)


def test_a_start_without_the_required_password_is_refused(
    home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from app.main import main

    monkeypatch.setenv("SPECULOOS_HOST", "0.0.0.0")
    assert main() == 2
    assert "SPECULOOS_PASSWORD" in capsys.readouterr().err


def test_the_login_comes_before_the_pages_own_routes(home: Settings) -> None:
    """Gradio has its own /login route, which would replace the form."""
    from app.main import make_app

    pages = make_app(replace(home, password="cinnamon", publish_port=9000))
    assert TestClient(pages, base_url="http://127.0.0.1:9000").get("/healthz").status_code == 200
    client = TestClient(pages, base_url="http://127.0.0.1:7860")
    assert 'name="password"' in client.get("/runs").text
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

    async def send_passwords() -> tuple[list[int], int, int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7860") as client:
            wrong = [asyncio.create_task(client.post("/login", data={"password": str(i)})) for i in range(60)]
            async with asyncio.timeout(60):
                while sum(task.done() for task in wrong) < 60 - auth.MOST_WAITING:
                    await asyncio.sleep(0.02)
            refused, waiting = await asyncio.wait(wrong, timeout=0)
            during = await client.post("/login", data={"password": "cinnamon"})
            [task.cancel() for task in waiting]
            await asyncio.wait(waiting)
            after = await client.post("/login", data={"password": "cinnamon"})
        return [task.result().status_code for task in refused], during.status_code, after.status_code

    refused, during, after = run_async(send_passwords())
    assert refused == [429] * (60 - auth.MOST_WAITING)
    assert (during, after) == (429, 303)


def test_many_wrong_passwords_at_once_wait_for_each_other(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio
    import time

    import httpx

    monkeypatch.setattr(auth, "PAUSE", 1.0)
    app = FastAPI()
    auth.add_login(app, replace(home, password="cinnamon"))

    async def send_passwords() -> tuple[int, float]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7860") as client:
            began = time.monotonic()
            wrong = [asyncio.create_task(client.post("/login", data={"password": str(i)})) for i in range(4)]
            await asyncio.sleep(0.02)
            right = await client.post("/login", data={"password": "cinnamon"})
            refused = sum(task.done() for task in wrong)
            await asyncio.gather(*wrong)
        assert right.status_code == 303
        return refused, time.monotonic() - began

    refused, elapsed = run_async(send_passwords())
    assert elapsed >= 3.75
    assert refused <= 2, "the right one need not wait for the others"


@pytest.fixture
def token_client(home: Settings, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A client of pages that require a login link."""
    monkeypatch.setattr(auth, "PAUSE", 0)
    app = FastAPI()
    auth.add_login(app, replace(home, login="token"))

    @app.get("/runs")
    def jobs() -> str:
        return "secret page"

    return TestClient(app, base_url="http://127.0.0.1:7860", follow_redirects=False)


def test_a_printed_link_lets_one_browser_in_once(token_client: TestClient, home: Settings) -> None:
    assert token_client.get("/runs").headers["location"].startswith("/login")
    assert "speculoos login-link" in token_client.get("/login").text
    link = login_links.create_login_link(home, "http://127.0.0.1:7860")
    response = token_client.get(link)
    assert (response.status_code, response.headers["location"]) == (303, "/")
    assert token_client.get("/runs").status_code == 200
    another = login_links.create_login_link(home, "http://127.0.0.1:7860")
    assert token_client.get(another).status_code == 303
    token_client.cookies.clear()
    assert token_client.get(link).status_code == 401
    assert login_links.consume_login_token(home, another.split("token=")[1]), (
        "a browser that is in already uses up no link"
    )
    assert token_client.get("/runs").status_code == 303


def test_the_printed_address_or_its_token_may_be_typed(token_client: TestClient, home: Settings) -> None:
    for shorten in (lambda link: link, lambda link: link.split("token=")[1]):
        link = login_links.create_login_link(home, "http://127.0.0.1:7860")
        form = {"password": f" {shorten(link)} ", "name": "Ada"}
        assert token_client.post("/login", data=form).status_code == 303
        assert token_client.post("/login", data=form).status_code == 401
    for wrong in ("", "x", "../session-key", "é", "http://127.0.0.1/login?token=", "http://[?token=x"):
        assert token_client.post("/login", data={"password": wrong}).status_code == 401


def test_a_link_gets_too_old_and_lies_in_the_home_only_as_a_digest(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = login_links.create_login_link(home, "http://127.0.0.1:7860").split("token=")[1]
    folder = home.home / "secrets" / "login-links"
    (file,) = folder.iterdir()
    assert token not in file.name and file.read_bytes() == b""
    assert file.stat().st_mode & 0o077 == 0 and folder.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(login_links, "SECONDS", -1)
    assert not login_links.consume_login_token(home, token)
    login_links.create_login_link(home, "http://127.0.0.1:7860")
    login_links.create_login_link(home, "http://127.0.0.1:7860")
    assert len(list(folder.iterdir())) == 1


def test_links_open_a_page_behind_a_password_too_but_no_link_is_a_password(client: TestClient, home: Settings) -> None:
    link = login_links.create_login_link(home, "http://127.0.0.1:7860")
    token = link.split("token=")[1]
    assert client.post("/login", data={"password": token}).status_code == 401
    assert client.get(link).status_code == 303
    assert client.get("/runs").status_code == 200


def test_the_way_of_logging_in_is_open_or_token(home: Settings) -> None:
    assert not load({}).requires_login
    assert load({"SPECULOOS_LOGIN": "token"}).requires_login
    with pytest.raises(BadInput, match="SPECULOOS_LOGIN"):
        load({"SPECULOOS_LOGIN": "tokens"})
