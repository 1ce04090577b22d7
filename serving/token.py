"""Who may ask the inference server: the home's bearer token (made once, kept in home/secrets, compared in constant
time) and keys, which are rows (tracking/keys.py).
"""

import hmac
import time
from dataclasses import replace
from datetime import datetime

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.errors import ApiError, as_api_error
from speculoos.errors import BadInput, SpeculoosError, Unavailable
from speculoos.inference_token import make_token
from speculoos.settings import LOOPBACK, Settings
from tracking import keys
from tracking.db import reading, writing
from tracking.tables import now

NO_TOKEN = (
    "A valid token is needed: Authorization: Bearer <the token in home/secrets/inference-token, or a key made with "
    "`speculoos keys add NAME`>."
)
KEPT_SECONDS = 0.5
"""How long an answer about a key counts: a revoked one stops within a second."""
MOST_KNOWN = 1024
CLIENT = "speculoos.client"


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
    try:
        return replace(settings, inference_token=make_token(settings))
    except OSError as error:
        file = settings.inference_token_file
        raise Unavailable(f"The token file {file} cannot be made ({error.strerror}).") from None


class ApiKeys:
    """The keys that may be used, asked from the database at most once in KEPT_SECONDS each; any thread may call."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._known: dict[str, tuple[float, str]] = {}
        self._uses: dict[str, datetime] = {}

    def find(self, secret: str) -> str:
        """The id of the live key with this secret, or "". Raises Unavailable when the database cannot be asked."""
        sha256 = keys.hashed(secret)
        checked_at, key_id = self._known.get(sha256, (-KEPT_SECONDS, ""))
        if time.monotonic() - checked_at > KEPT_SECONDS:
            with reading(self._settings) as db:
                key = keys.find_live(db, sha256)
            key_id = key.id if key else ""
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[sha256] = time.monotonic(), key_id
        if key_id:
            self._uses[key_id] = now()
        return key_id

    def store_uses(self) -> None:
        """Keep in the database when keys were last used. Raises Unavailable."""
        while self._uses:
            key_id, at = self._uses.popitem()
            with writing(self._settings) as db:
                keys.note_use(db, key_id, at)


class ApiKeyRequired:
    """Pure ASGI middleware: /metrics and everything under /v1 need `Authorization: Bearer <token or key>`, before
    anything is read. Tells the app who asks (`client_of`)."""

    def __init__(self, app: ASGIApp, token: str, keys: ApiKeys):
        self.app, self._token, self._keys = app, token.encode(), keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http" and scope["path"].startswith(("/v1", "/metrics")):
            try:
                scope[CLIENT] = await self._client(scope)
            except ApiError as refusal:
                app = refusal.response()
        await app(scope, receive, send)

    async def _client(self, scope: Scope) -> str:
        """Who asks: a key, or with the home's token an address. Raises ApiError."""
        scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else ""
        if given and hmac.compare_digest(given.encode(), self._token):
            return f"address:{(scope.get('client') or ['?'])[0]}"
        try:
            key_id = await run_in_threadpool(self._keys.find, given) if given.startswith(keys.PREFIX) else ""
        except SpeculoosError as error:
            raise as_api_error(error) from None
        if not key_id:
            raise ApiError(401, NO_TOKEN, "invalid_api_key")
        return f"key:{key_id}"


def client_of(scope: Scope) -> str:
    """Who sent a request: the lane it waits in."""
    return scope.get(CLIENT, "")
