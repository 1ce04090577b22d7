"""Who is at the other end of a request: the login that let a browser in, or the browser itself where nobody logs in."""

from typing import Any

from gradio.context import LocalContext
from starlette.requests import Request

LOGIN = "speculoos.login"
"""Key of the request's scope that holds the app.sessions.Visitor; only requests with a login have it."""
BROWSER = "speculoos-browser"
"""Cookie that tells browsers apart where no login does."""


def session_of(scope: dict[str, Any]) -> str:
    """What uploads are bound to: the login, else the browser's cookie; "" for a browser that has neither yet."""
    if visitor := scope.get(LOGIN):
        return f"login {visitor.id}"
    cookie = Request(scope).cookies.get(BROWSER, "")
    return f"browser {cookie}" if cookie else ""


def visitor_of(request: Any) -> Any | None:
    """The app.sessions.Visitor of a `gr.Request` or of a request of our own routes; None where nobody logs in."""
    plain = getattr(request, "request", None) or request
    return getattr(plain, "scope", {}).get(LOGIN)


async def still_in(request: Request) -> bool:
    """Whether the login that let a request in holds yet: what answers for long asks again and again. True where nobody
    logs in. Raises Unavailable when the database cannot tell."""
    sessions = getattr(request.app.state, "sessions", None)
    if sessions is None or LOGIN not in request.scope:
        return True
    return await sessions.find(request.cookies.get(sessions.cookie, "")) is not None


def user() -> str:
    """The name given at the login by whoever caused the event that runs now; "" when there is none."""
    visitor = visitor_of(LocalContext.request.get(None))
    return visitor.user if visitor else ""
