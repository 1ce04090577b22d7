"""Logins of the pages: cookie values and their rows.

A cookie contains a random token. The row's id is an HMAC of it, keyed with a key of the home folder and the password:
the database does not reveal cookies, and a new password ends all logins. Rows survive a restart and are deleted at
logout.
"""

import asyncio
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, select, update

from speculoos.errors import SpeculoosError
from speculoos.files import read_or_create_secret
from speculoos.settings import Settings
from tracking.db import reading, writing
from tracking.tables import Login, now

SECONDS = 14 * 24 * 3600  # duration of a login in seconds
FRESH = 2.0  # cache time of a row in seconds, so that a page's many requests cost one query
LONGEST_COOKIE = 100


@dataclass(frozen=True)
class Visitor:
    """A logged-in user: id of the login, user name (or ""), and end of the login."""

    id: str
    user: str
    ends_at: datetime


class Sessions:
    """Creates, finds and ends logins of one home folder."""

    def __init__(self, settings: Settings):
        key = session_key(settings)
        self._settings, self._password = settings, settings.password
        self._key = hmac.digest(key, b"login " + self._password.encode(), "sha256")
        self.cookie = f"speculoos-session-{hashlib.sha256(key).hexdigest()[:8]}"
        """Specific to the home folder, since browsers send cookies to all ports of a host."""
        self._cached: dict[str, tuple[float, Visitor]] = {}

    def is_password(self, password: str) -> bool:
        """Whether the password is right, compared in constant time; False if no password is set."""
        digests = (hashlib.sha256(text.encode("utf-8", "replace")).digest() for text in (password, self._password))
        return hmac.compare_digest(*digests) and bool(self._password)

    def begin(self, user: str = "") -> str:
        """Create a login; returns the cookie's value."""
        value = secrets.token_urlsafe(32)
        with writing(self._settings) as session:
            session.execute(delete(Login).where(Login.ends_at <= now()))
            session.add(Login(id=self._id(value), user=user, ends_at=now() + timedelta(seconds=SECONDS)))
        return value

    def end(self, value: str) -> None:
        """Log out the browser with this cookie."""
        login_id = self._id(value)
        self._cached.pop(login_id, None)
        with writing(self._settings) as session:
            session.execute(delete(Login).where(Login.id == login_id))

    def rename(self, visitor: Visitor, user: str) -> None:
        """Change the user name of a login. `user` must be checked."""
        with writing(self._settings) as session:
            session.execute(update(Login).where(Login.id == visitor.id).values(user=user))
        self._cached.pop(visitor.id, None)

    async def find(self, value: str) -> Visitor | None:
        """The visitor with this cookie, if logged in. While the database is not available, a cached visitor stays
        logged in; raises Unavailable for others."""
        if not 0 < len(value) <= LONGEST_COOKIE:
            return None
        login_id = self._id(value)
        read_at, visitor = self._cached.get(login_id, (0.0, None))
        if visitor is None or time.monotonic() - read_at > FRESH:
            try:
                visitor = await asyncio.to_thread(self._read, login_id)
            except SpeculoosError:
                if visitor is None:
                    raise
        return visitor if visitor and visitor.ends_at > datetime.now(UTC) else None

    def _read(self, login_id: str) -> Visitor | None:
        with reading(self._settings) as session:
            row = session.scalar(select(Login).where(Login.id == login_id, Login.ends_at > now()))
        if row is None:
            self._cached.pop(login_id, None)
            return None
        visitor = Visitor(row.id, row.user, row.ends_at)
        self._cached[login_id] = (time.monotonic(), visitor)
        return visitor

    def _id(self, value: str) -> str:
        return hmac.new(self._key, value.encode("utf-8", "replace"), "sha256").hexdigest()


def session_key(settings: Settings) -> bytes:
    """The home folder's key for cookies and uploads, created at the first start, readable by its owner only."""
    return read_or_create_secret(settings.home / "secrets" / "session-key", lambda: secrets.token_hex(32)).encode()
