"""The login in front of every page and route, where a password is set or SPECULOOS_LOGIN asks for a link.

A login is a row (app/sessions.py), so logging out ends it and a restart does not; a new password ends them all.
Everything but the login, its style sheet, `/healthz` and `/readyz` needs one.
"""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app.gradio_gate import is_secure
from app.sessions import SECONDS, Sessions, Visitor
from app.visitor import BROWSER, LOGIN
from app.widgets.text import safe
from speculoos import login_links
from speculoos.errors import BadInput, SpeculoosError
from speculoos.settings import Settings
from tracking.names import check_user

PAUSE = 0.5
"""Seconds a wrong password costs; wrong ones wait for each other."""
MOST_WAITING = 20
"""While so many wrong ones wait, no password is looked at: so there are 1 / PAUSE tries a second in all."""
FORM_LIMIT = 4096
OPEN = ("/healthz", "/readyz", "/login", "/logout", "/ui/style.css", "/ui/early.js", "/ui/icon.svg")
MACHINES = ("/api/", "/gradio_api/", "/metrics")
"""Paths that scripts ask for: they get 401, not the login page."""
WRONG_PASSWORD = "That is not the password."
WRONG_LINK = "This link was used already, or is too old. `speculoos login-link` prints another."


def check_bind(settings: Settings) -> None:
    """Raises BadInput when others could reach the pages without a password."""
    if not settings.is_loopback and not settings.password:
        raise BadInput(
            f"SPECULOOS_HOST: {settings.host} can be reached from other machines, so a password is needed; "
            "set SPECULOOS_PASSWORD (or SPECULOOS_PASSWORD_FILE), or listen on 127.0.0.1."
        )


def add_login(app: FastAPI, settings: Settings) -> None:
    """Put the login in front of `app`. Does nothing when none is asked for."""
    if not settings.asks_login:
        return
    door = Door(settings)

    @app.get("/login")
    async def form(request: Request) -> Response:
        if token := request.query_params.get("token"):
            return await door.by_link(request, token)
        return door.page(request.query_params.get("next", "/"))

    @app.post("/login")
    async def login(request: Request) -> Response:
        return await door.by_form(request, await read_form(request))

    @app.post("/logout")
    async def logout(request: Request) -> Response:
        answer = RedirectResponse("/login", status_code=303)
        if value := request.cookies.get(door.sessions.cookie):
            await asyncio.to_thread(door.sessions.end, value)
        for name in (door.sessions.cookie, BROWSER):
            answer.delete_cookie(name)
        return answer

    app.state.sessions = door.sessions
    app.add_middleware(LoginRequired, sessions=door.sessions)


class Door:
    """Lets people in: by the password, or by a link that works once."""

    def __init__(self, settings: Settings):
        self.settings, self.sessions = settings, Sessions(settings)
        self._one_at_a_time, self._places = asyncio.Lock(), asyncio.Semaphore(MOST_WAITING)

    async def by_link(self, request: Request, token: str) -> Response:
        """Someone opened the address that was printed; a browser that is in already uses up no link."""
        if await self.sessions.find(request.cookies.get(self.sessions.cookie, "")):
            return RedirectResponse(own_path(request.query_params.get("next", "/")), status_code=303)
        return await self._let_in(request, request.query_params.get("next", "/"), token=token)

    async def by_form(self, request: Request, given: dict[str, str]) -> Response:
        """Someone filled in the form: a password or, where there is none, the printed address or its token."""
        secret = given.get("password", "").strip() if not self.settings.password else given.get("password", "")
        token = "" if self.settings.password else token_in(secret)
        return await self._let_in(request, given.get("next", "/"), given.get("name", ""), secret, token)

    async def _let_in(
        self, request: Request, target: str, name: str = "", password: str = "", token: str = ""
    ) -> Response:
        target = own_path(target)
        if self._places.locked():
            return self.page(target, "Too many tries at once; try again in a minute.", name, 429)
        try:
            user = check_user(name)
            if not (self.sessions.is_password(password) or token and login_links.use(self.settings, token)):
                async with self._places, self._one_at_a_time:
                    await asyncio.sleep(PAUSE)
                wrong = WRONG_PASSWORD if self.settings.password and not token else WRONG_LINK
                return self.page(target, wrong, name, 401)
            value = await asyncio.to_thread(self.sessions.begin, user)
        except SpeculoosError as error:
            return self.page(target, str(error), name, 400 if isinstance(error, BadInput) else 503)
        return with_cookie(RedirectResponse(target, status_code=303), self.sessions.cookie, value, request)

    def page(self, target: str, problem: str = "", name: str = "", status: int = 200) -> HTMLResponse:
        """The form, and what is wrong with what was sent."""
        return HTMLResponse(login_page(self.settings, target, problem, name), status, {"Cache-Control": "no-store"})


class LoginRequired:
    """ASGI middleware: requests without a login are led to it, or refused with 401. The others carry their Visitor."""

    def __init__(self, app: Any, sessions: Sessions):
        self.app, self.sessions = app, sessions

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket") or scope["type"] == "http" and scope["path"] in OPEN:
            await self.app(scope, receive, send)
            return
        try:
            visitor = await self._visitor(scope)
        except SpeculoosError as error:
            refusal = Response(f"{error}\n", status_code=503, media_type="text/plain")
        else:
            if visitor:
                await self.app({**scope, LOGIN: visitor}, receive, send)
                return
            refusal = self._refuse(Request({**scope, "type": "http", "method": scope.get("method", "GET")}))
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await refusal(scope, receive, send)

    async def _visitor(self, scope: dict[str, Any]) -> Visitor | None:
        value = Request({**scope, "type": "http"}).cookies.get(self.sessions.cookie, "")
        return await self.sessions.find(value)

    def _refuse(self, request: Request) -> Response:
        path = request.url.path
        if request.method != "GET" or path.startswith(MACHINES):
            return Response("Log in first.\n", status_code=401, media_type="text/plain")
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/login?next={quote(path + query, safe='')}", status_code=303)


def token_in(text: str) -> str:
    """The token of a printed address, or `text` itself."""
    return dict(parse_qsl(text.partition("?")[2])).get("token", "") if "token=" in text else text


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
    ours = target.startswith("/") and not target.startswith("//")
    return target if ours and "\\" not in target and target.isprintable() else "/"


def with_cookie(answer: Response, name: str, value: str, request: Request) -> Response:
    """Set the session cookie: not for scripts, not sent from other sites, over TLS only where the page came so."""
    secure = is_secure(request)
    answer.set_cookie(name, value, max_age=SECONDS, httponly=True, samesite="strict", secure=secure, path="/")
    return answer


def login_page(settings: Settings, target: str, problem: str = "", name: str = "") -> str:
    """The form, with nothing on it that needs a script."""
    folder = Path(__file__).parent / "static"
    template = (folder / "login.html").read_text(encoding="utf-8")
    form = (folder / f"login-{'password' if settings.password else 'link'}.html").read_text(encoding="utf-8")
    message = f'<p class="sp-notice sp-bad" role="alert"><span>{safe(problem)}</span></p>' if problem else ""
    template = template.replace("[[asked]]", form).replace("[[problem]]", message)
    return template.replace("[[next]]", safe(own_path(target))).replace("[[name]]", safe(name[:200]))
