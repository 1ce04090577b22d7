"""The bearer token of the inference server: made once, kept in home/secrets, compared in constant time."""

import hmac
import os
import secrets
from dataclasses import replace
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.errors import ApiError
from speculoos.errors import BadInput, Unavailable
from speculoos.settings import LOOPBACK, Settings

NO_TOKEN = "A valid token is needed: Authorization: Bearer <the token in home/secrets/inference-token>."


def token_path(settings: Settings) -> Path:
    return settings.home / "secrets" / "inference-token"


def with_token(settings: Settings) -> Settings:
    """Settings that have a token: the given one, else one made in home/secrets (loopback only).

    Raises BadInput for a server that others can reach without a token of the operator's choice.
    """
    if settings.inference_token:
        return settings
    if settings.inference_host not in LOOPBACK:
        raise BadInput(
            f"The inference server would listen on {settings.inference_host} without a token; "
            "set SPECULOOS_INFERENCE_TOKEN (or SPECULOOS_INFERENCE_TOKEN_FILE)."
        )
    return replace(settings, inference_token=make_token(token_path(settings)))


def make_token(path: Path) -> str:
    """The token in `path`, which is made (mode 0600, whole or not at all) when it is not there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(24) + "\n")
        try:
            os.link(temporary, path)  # fails, rather than replaces, when another process was first
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
        return path.read_text().strip()
    except OSError as error:
        raise Unavailable(f"The token file {path} cannot be made ({error.strerror}).") from None


class TokenRequired:
    """Pure ASGI middleware: everything under /v1 needs `Authorization: Bearer <token>`, before anything is read."""

    def __init__(self, app: ASGIApp, token: str):
        self.app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http" and scope["path"].startswith("/v1") and not self._is_right(scope):
            app = ApiError(401, NO_TOKEN, "invalid_api_key").response()
        await app(scope, receive, send)

    def _is_right(self, scope: Scope) -> bool:
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)
