"""Logins of the pages: cookie values, and the rows that make them hold.

A cookie holds a random text. The row's id is a digest of it, keyed with a key of the home and the password: the
database does not tell a cookie, and a new password ends every login. Rows survive a restart and go with a logout.
"""

import asyncio
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from speculoos.errors import SpeculoosError
from speculoos.files import secret
from speculoos.settings import Settings
from tracking import logins
from tracking.db import reading, writing

SECONDS = 14 * 24 * 3600
"""How long a login lasts."""
FRESH = 2.0
"""Seconds for which a row that was read is believed, so that a page's many requests cost one query."""
LONGEST_COOKIE = 100


@dataclass(frozen=True)
class Visitor:
    """Someone who is logged in: the login's id, the name they gave (or ""), and when the login ends."""

    id: str
    user: str
    ends_at: datetime


class Sessions:
    """Begins, finds and ends logins of one home."""

    def __init__(self, settings: Settings):
        key = session_key(settings)
        self._settings, self._password = settings, settings.password
        self._key = hmac.digest(key, b"login " + self._password.encode(), "sha256")
        self.cookie = f"speculoos-session-{hashlib.sha256(key).hexdigest()[:8]}"
        """Of this home: a browser sends cookies to every port of a host."""
        self._known: dict[str, tuple[float, Visitor]] = {}

    def is_password(self, given: str) -> bool:
        """Compared in constant time, whatever the lengths; never true when no password is set."""
        digests = (hashlib.sha256(text.encode("utf-8", "replace")).digest() for text in (given, self._password))
        return hmac.compare_digest(*digests) and bool(self._password)

    def begin(self, user: str = "") -> str:
        """Let someone in; returns the cookie's value."""
        value = secrets.token_urlsafe(32)
        with writing(self._settings) as session:
            logins.begin(session, self._id(value), user, SECONDS)
        return value

    def end(self, value: str) -> None:
        """Log out the browser with this cookie."""
        login_id = self._id(value)
        self._known.pop(login_id, None)
        with writing(self._settings) as session:
            logins.end(session, login_id)

    def rename(self, visitor: Visitor, user: str) -> None:
        """Another name for someone who is logged in. `user` is checked already."""
        with writing(self._settings) as session:
            logins.rename(session, visitor.id, user)
        self._known.pop(visitor.id, None)

    async def find(self, value: str) -> Visitor | None:
        """Who has this cookie, if they are logged in. A database that is away does not log out who was just here;
        raises Unavailable for the others."""
        if not 0 < len(value) <= LONGEST_COOKIE:
            return None
        login_id = self._id(value)
        read_at, visitor = self._known.get(login_id, (0.0, None))
        if visitor is None or time.monotonic() - read_at > FRESH:
            try:
                visitor = await asyncio.to_thread(self._read, login_id)
            except SpeculoosError:
                if visitor is None:
                    raise
        return visitor if visitor and visitor.ends_at > datetime.now(UTC) else None

    def _read(self, login_id: str) -> Visitor | None:
        with reading(self._settings) as session:
            row = logins.find(session, login_id)
        if row is None:
            self._known.pop(login_id, None)
            return None
        visitor = Visitor(row.id, row.user, row.ends_at)
        self._known[login_id] = (time.monotonic(), visitor)
        return visitor

    def _id(self, value: str) -> str:
        return hmac.new(self._key, value.encode("utf-8", "replace"), "sha256").hexdigest()


def session_key(settings: Settings) -> bytes:
    """The home's key for cookies and uploads, made at the first start, readable by its owner only."""
    return secret(settings.home / "secrets" / "session-key", lambda: secrets.token_hex(32)).encode()
