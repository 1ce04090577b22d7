"""Identity of a request's sender: the login or, without logins, the browser."""

from typing import Any

from gradio.context import LocalContext
from starlette.requests import Request

LOGIN = "speculoos.login"  # key of the tracking.logins.Visitor in the scope of a request with a login
BROWSER = "speculoos-browser"  # cookie that identifies a browser without a login


def session_of(scope: dict[str, Any]) -> str:
    """Owner of uploads: the login, otherwise the browser's cookie; "" for a browser without either."""
    if visitor := scope.get(LOGIN):
        return f"login {visitor.id}"
    cookie = Request(scope).cookies.get(BROWSER, "")
    return f"browser {cookie}" if cookie else ""


def is_secure(request: Request) -> bool:
    """Whether the request came over TLS, directly or through a proxy that sets X-Forwarded-Proto."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"


def visitor_of(request: Any) -> Any | None:
    """The tracking.logins.Visitor of a `gr.Request` or of a request of an API route; None without logins."""
    plain = getattr(request, "request", None) or request
    return getattr(plain, "scope", {}).get(LOGIN)


async def is_logged_in(request: Request) -> bool:
    """Whether the request's login is still valid, for long responses to check repeatedly. True without logins. Raises
    Unavailable if the database is not available."""
    sessions = getattr(request.app.state, "sessions", None)
    if sessions is None or LOGIN not in request.scope:
        return True
    return await sessions.find(request.cookies.get(sessions.cookie, "")) is not None


def user() -> str:
    """User name of the login that caused the current event; "" without one."""
    visitor = visitor_of(LocalContext.request.get(None))
    return visitor.user if visitor else ""
