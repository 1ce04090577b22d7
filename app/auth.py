"""Login in front of all pages and routes, if a password is set or SPECULOOS_LOGIN requires a link.

A login is a row (tracking/logins.py): it survives a restart and ends with a logout; a new password ends all logins.
All paths except the login, its style sheet, `/healthz` and `/readyz` require one.
"""

import asyncio
import hmac
from typing import Any
from urllib.parse import parse_qsl, quote

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app.gradio_gate import read_body
from app.i18n import language, t
from app.theme import template
from app.visitor import BROWSER, LOGIN, is_secure
from app.widgets.text import safe
from speculoos import login_links
from speculoos.errors import BadInput, SpeculoosError
from speculoos.settings import Settings
from tracking.logins import SECONDS, Sessions
from tracking.names import check_user

PAUSE = 0.5  # delay in seconds after a wrong password. Delays run one after another
MOST_WAITING = 20  # pending delays; with more no password is checked: at most 1 / PAUSE attempts per second in total
FORM_LIMIT = 4096
LOGIN_FILES = ("tokens.css", "inter.woff2", "style.css", "early.js", "icon.svg")
PUBLIC_PATHS = ("/healthz", "/readyz", "/login", "/logout", *(f"/ui/{name}" for name in LOGIN_FILES))
SCRIPT_PATHS = ("/api/", "/gradio_api/", "/metrics")  # paths requested by scripts: they get 401, not the login page


def check_bind(settings: Settings) -> None:
    """Raises BadInput if the pages would be reachable from other machines without a password."""
    if not settings.is_loopback and not settings.password:
        raise BadInput(
            f"SPECULOOS_HOST: {settings.host} can be reached from other machines, so a password is needed; "
            "set SPECULOOS_PASSWORD (or SPECULOOS_PASSWORD_FILE), or listen on 127.0.0.1."
        )


def add_login(app: FastAPI, settings: Settings) -> None:
    """Add the login to `app`, if the settings require one."""
    if not settings.requires_login:
        return
    handler = LoginHandler(settings)

    @app.get("/login")
    async def form(request: Request) -> Response:
        if token := request.query_params.get("token"):
            return await handler.by_link(request, token)
        return handler.page(request.query_params.get("next", "/"))

    @app.post("/login")
    async def login(request: Request) -> Response:
        return await handler.by_form(request, await read_form(request))

    @app.post("/logout")
    async def logout(request: Request) -> Response:
        response = RedirectResponse("/login", status_code=303)
        if value := request.cookies.get(handler.sessions.cookie):
            await asyncio.to_thread(handler.sessions.end, value)
        for name in (handler.sessions.cookie, BROWSER):
            response.delete_cookie(name)
        return response

    app.state.sessions = handler.sessions
    app.add_middleware(LoginRequired, sessions=handler.sessions, metrics_token=settings.metrics_token)


class LoginHandler:
    """Handles login requests: by password, or by a link that works once."""

    def __init__(self, settings: Settings):
        self.settings, self.sessions = settings, Sessions(settings)
        self._delay_lock, self._delays = asyncio.Lock(), asyncio.Semaphore(MOST_WAITING)

    async def by_link(self, request: Request, token: str) -> Response:
        """Login with a printed link. A browser that is logged in already does not use up the link."""
        target = local_path(request.query_params.get("next", "/"))
        if await self.sessions.find(request.cookies.get(self.sessions.cookie, "")):
            return RedirectResponse(target, status_code=303)
        return await self._log_in(request, target, token=token)

    async def by_form(self, request: Request, fields: dict[str, str]) -> Response:
        """Login with the form: the password or, if none is set, the printed link or its token."""
        secret, target, name = fields.get("password", ""), local_path(fields.get("next", "/")), fields.get("name", "")
        credentials = {"password": secret} if self.settings.password else {"token": token_in(secret.strip())}
        return await self._log_in(request, target, name, **credentials)

    async def _log_in(
        self, request: Request, target: str, name: str = "", *, password: str = "", token: str = ""
    ) -> Response:
        if self._delays.locked():
            return self.page(target, t("Too many attempts; try again in a minute."), name, 429)
        try:
            user = check_user(name)
            is_right = self.sessions.is_password(password)
            if not is_right and not (token and login_links.consume_login_token(self.settings, token)):
                async with self._delays, self._delay_lock:
                    await asyncio.sleep(PAUSE)
                used = t("This link was used already or has expired. `speculoos login-link` prints a new one.")
                wrong = used if token or not self.settings.password else t("Wrong password.")
                return self.page(target, wrong, name, 401)
            value = await asyncio.to_thread(self.sessions.begin, user)
        except SpeculoosError as error:
            return self.page(target, str(error), name, 400 if isinstance(error, BadInput) else 503)
        response, secure = RedirectResponse(target, status_code=303), is_secure(request)
        cookie = {"max_age": SECONDS, "httponly": True, "samesite": "strict", "secure": secure, "path": "/"}
        response.set_cookie(self.sessions.cookie, value, **cookie)
        return response

    def page(self, target: str, problem: str = "", name: str = "", status: int = 200) -> HTMLResponse:
        """The login form, which works without scripts, with an error message."""
        message = f'<p class="sp-notice sp-bad" role="alert"><span>{safe(problem)}</span></p>' if problem else ""
        if self.settings.password:
            form = template("login-password.html", label=t("Password"))
        else:
            lead = t("To log in, open a login link, which works once. On the machine of the workbench, enter")
            paste = t("and open the printed URL, or paste it here.")
            form = template("login-link.html", lead=lead, paste=paste, label=t("Printed URL"))
        texts = {"title": t("log in"), "own_name": t("Your name on jobs (optional)"), "button": t("Log in")}
        texts |= {"next": safe(local_path(target)), "name": safe(name[:200]), "language": language()}
        html = template("login.html", form=form, problem=message, **texts)
        return HTMLResponse(html, status, {"Cache-Control": "no-store"})


class LoginRequired:
    """ASGI middleware: redirects requests without a login to the form, or refuses them with 401. Other requests get
    their Visitor in the scope. A request with the metrics token may read `/metrics`, and nothing else."""

    def __init__(self, app: Any, sessions: Sessions, metrics_token: str = ""):
        self.app, self.sessions, self._metrics_token = app, sessions, metrics_token

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC_PATHS:  # the gate refuses websockets
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        if self._is_scrape(request):
            await self.app(scope, receive, send)
            return
        try:
            visitor = await self.sessions.find(request.cookies.get(self.sessions.cookie, ""))
        except SpeculoosError as error:
            response = Response(f"{error}\n", status_code=503, media_type="text/plain")
        else:
            if visitor:
                await self.app({**scope, LOGIN: visitor}, receive, send)
                return
            path, query = request.url.path, f"?{request.url.query}" if request.url.query else ""
            if request.method != "GET" or path.startswith(SCRIPT_PATHS):
                response = Response("Log in first.\n", status_code=401, media_type="text/plain")
            else:
                response = RedirectResponse(f"/login?next={quote(path + query, safe='')}", status_code=303)
        await response(scope, receive, send)

    def _is_scrape(self, request: Request) -> bool:
        if not self._metrics_token or request.method != "GET" or request.scope["path"] != "/metrics":
            return False
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        texts = (text.encode("utf-8", "surrogateescape") for text in (token.strip(), self._metrics_token))
        return kind.lower() == "bearer" and hmac.compare_digest(*texts)


def token_in(text: str) -> str:
    """The token of a printed link, or `text` itself."""
    return dict(parse_qsl(text.partition("?")[2])).get("token", "") if "token=" in text else text


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a small urlencoded form; a larger body counts as empty."""
    try:
        body = await read_body(request, FORM_LIMIT)
    except BadInput:
        return {}
    return dict(parse_qsl(body.decode("utf-8", "replace")))


def local_path(target: str) -> str:
    """`target` if it is a path of this application, otherwise "/"."""
    ours = target.startswith("/") and not target.startswith("//")
    return target if ours and "\\" not in target and target.isprintable() else "/"
