"""The password in front of every page and route, when one is set: a login page and a signed cookie.

Sessions are not stored: the cookie holds when it ends and a signature made with a key of the home and the password,
so a new password logs everybody out and a restart nobody. Everything but the login, its style sheet, `/healthz` and
`/readyz` needs the cookie.
"""

import asyncio
import hashlib
import hmac
import os
import secrets
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app.components.text import safe
from speculoos.errors import BadInput
from speculoos.settings import Settings

COOKIE = "speculoos-session"
SECONDS = 14 * 24 * 3600
"""How long a login lasts."""
PAUSE = 0.5
"""Seconds a wrong password costs; wrong ones wait for each other."""
MOST_WAITING = 20
"""While so many wrong ones wait, no password is looked at: so there are 1 / PAUSE tries a second in all."""
FORM_LIMIT = 4096
OPEN = ("/healthz", "/readyz", "/login", "/logout", "/ui/style.css", "/ui/early.js", "/ui/icon.svg")
MACHINES = ("/api/", "/gradio_api/", "/metrics")
"""Paths that scripts ask for: they get 401, not the login page."""


def check_bind(settings: Settings) -> None:
    """Raises BadInput when others could reach the pages without a password."""
    if not settings.is_loopback and not settings.password:
        raise BadInput(
            f"SPECULOOS_HOST: {settings.host} can be reached from other machines, so a password is needed; "
            "set SPECULOOS_PASSWORD (or SPECULOOS_PASSWORD_FILE), or listen on 127.0.0.1."
        )


def add_login(app: FastAPI, settings: Settings) -> None:
    """Put the password in front of `app`. Does nothing when none is set."""
    if not settings.password:
        return
    sessions = Sessions(session_key(settings), settings.password)
    one_at_a_time, places = asyncio.Lock(), asyncio.Semaphore(MOST_WAITING)

    @app.get("/login")
    def form(request: Request) -> HTMLResponse:
        return HTMLResponse(login_page(request.query_params.get("next", "/")))

    @app.post("/login")
    async def login(request: Request) -> Response:
        given = await read_form(request)
        target = own_path(given.get("next", "/"))
        if places.locked():
            return HTMLResponse(login_page(target, "Too many tries at once; try again in a minute."), status_code=429)
        if not sessions.is_password(given.get("password", "")):
            async with places, one_at_a_time:
                await asyncio.sleep(PAUSE)
            return HTMLResponse(login_page(target, "That is not the password."), status_code=401)
        return with_cookie(RedirectResponse(target, status_code=303), sessions.issue(), request)

    @app.post("/logout")
    def logout() -> Response:
        answer = RedirectResponse("/login", status_code=303)
        answer.delete_cookie(COOKIE)
        return answer

    app.add_middleware(LoginRequired, sessions=sessions)


class Sessions:
    """Issues and checks cookie values."""

    def __init__(self, key: bytes, password: str):
        self._password = password.encode()
        self._key = hmac.digest(key, self._password, "sha256")

    def is_password(self, given: str) -> bool:
        """Compared in constant time, whatever the lengths."""
        digests = (hashlib.sha256(text).digest() for text in (given.encode(), self._password))
        return hmac.compare_digest(*digests)

    def issue(self) -> str:
        """A new value, valid for SECONDS."""
        ends = str(int(time.time()) + SECONDS)
        return f"{ends}.{self._sign(ends)}"

    def is_valid(self, value: str) -> bool:
        """Signed by us and not over."""
        ends, _, signature = value.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(ends).encode()):
            return False
        return int(ends) > time.time()

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), "sha256").hexdigest()


class LoginRequired:
    """ASGI middleware: requests without a valid cookie are led to the login, or refused with 401."""

    def __init__(self, app: Any, sessions: Sessions):
        self.app, self.sessions = app, sessions

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket") or self._may_pass(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._refuse(Request(scope))(scope, receive, send)

    def _may_pass(self, scope: dict[str, Any]) -> bool:
        if scope["type"] == "http" and scope["path"] in OPEN:
            return True
        values = (cookie for cookie in Request({**scope, "type": "http"}).cookies.items())
        return any(name == COOKIE and self.sessions.is_valid(value) for name, value in values)

    def _refuse(self, request: Request) -> Response:
        path = request.url.path
        if request.method != "GET" or path.startswith(MACHINES):
            return Response("Log in first.\n", status_code=401, media_type="text/plain")
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/login?next={quote(path + query, safe='')}", status_code=303)


def session_key(settings: Settings) -> bytes:
    """The home's key for cookies, made at the first start, readable by its owner only."""
    path = settings.home / "secrets" / "session-key"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        temporary = path.with_name(f".session-key.{os.getpid()}")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    return path.read_bytes()


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a small urlencoded form; a larger body counts as empty."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > FORM_LIMIT:
            return {}
    return {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}


def own_path(target: str) -> str:
    """`target` when it is an address of ours, else the home page."""
    parts = urlsplit(target)
    ours = target.startswith("/") and not target.startswith(("//", "/\\")) and not parts.netloc and not parts.scheme
    return target if ours and "\\" not in target and target.isprintable() else "/"


def with_cookie(answer: Response, value: str, request: Request) -> Response:
    """Set the session cookie: not for scripts, not sent from other sites, over TLS only where the page came so."""
    secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
    answer.set_cookie(COOKIE, value, max_age=SECONDS, httponly=True, samesite="strict", secure=secure, path="/")
    return answer


def login_page(target: str, problem: str = "") -> str:
    """The form, with nothing on it that needs a script."""
    template = (Path(__file__).parent / "static" / "login.html").read_text(encoding="utf-8")
    said = f'<p class="sp-notice sp-bad" role="alert"><span>{safe(problem)}</span></p>' if problem else ""
    return template.replace("[[problem]]", said).replace("[[next]]", safe(own_path(target)))
