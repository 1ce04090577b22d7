"""Authentication of the inference server: the home's bearer token (created once, stored in home/secrets, compared in
constant time) and API keys, which are rows (tracking/keys.py).
"""

import hmac
from dataclasses import replace
from datetime import datetime

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.errors import ApiError, as_api_error
from speculoos.errors import BadInput, SpeculoosError, Unavailable
from speculoos.files import read_inference_token
from speculoos.settings import LOOPBACK, Settings
from tracking import keys
from tracking.db import reading, writing
from tracking.tables import now

NO_TOKEN = (
    "A valid token is needed: Authorization: Bearer <the token in home/secrets/inference-token, or a key made with "
    "`speculoos keys add NAME`>."
)
CLIENT_SCOPE_KEY = "speculoos.client"


def with_token(settings: Settings) -> Settings:
    """The settings, with a token created in home/secrets if they have none and listen on loopback only."""
    if settings.inference_token:
        return settings
    if settings.inference_host not in LOOPBACK:
        raise BadInput(
            f"The inference server would listen on {settings.inference_host} without a token; "
            "set SPECULOOS_INFERENCE_TOKEN (or SPECULOOS_INFERENCE_TOKEN_FILE)."
        )
    try:
        return replace(settings, inference_token=read_inference_token(settings))
    except OSError as error:
        file = settings.inference_token_file
        raise Unavailable(f"The token file {file} cannot be created ({error.strerror}).") from None


class ApiKeys:
    """Checks API keys. Safe to call from any thread."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._uses: dict[str, datetime] = {}

    def find(self, secret: str) -> str:
        """The id of the live key with this secret, or "". Raises Unavailable if the database cannot be queried."""
        with reading(self._settings) as session:
            key = keys.find_live(session, keys.hashed(secret))
        if key is None:
            return ""
        self._uses[key.id] = now()
        return key.id

    def store_uses(self) -> None:
        """Store when keys were last used. Raises Unavailable."""
        while self._uses:
            key_id, at = self._uses.popitem()
            with writing(self._settings) as session:
                keys.note_use(session, key_id, at)


class ApiKeyRequired:
    """Pure ASGI middleware: /metrics and all of /v1 need `Authorization: Bearer <token or key>`, checked before the
    body is read. Stores the client, by which the queue takes turns, in the scope as CLIENT_SCOPE_KEY."""

    def __init__(self, app: ASGIApp, token: str, keys: ApiKeys):
        self.app, self._token, self._keys = app, token.encode(), keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http" and scope["path"].startswith(("/v1", "/metrics")):
            try:
                scope[CLIENT_SCOPE_KEY] = await self._client(scope)
            except ApiError as error:
                app = error.response()
        await app(scope, receive, send)

    async def _client(self, scope: Scope) -> str:
        scheme, _, secret = Headers(scope=scope).get("authorization", "").partition(" ")
        secret = secret.strip() if scheme.lower() == "bearer" else ""
        if secret and hmac.compare_digest(secret.encode(), self._token):
            return f"address:{(scope.get('client') or ['?'])[0]}"
        try:
            key_id = await run_in_threadpool(self._keys.find, secret) if secret.startswith(keys.PREFIX) else ""
        except SpeculoosError as error:
            raise as_api_error(error) from None
        if not key_id:
            raise ApiError(401, NO_TOKEN, "invalid_api_key")
        return f"key:{key_id}"
