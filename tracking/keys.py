"""Keys for the inference server: made once and shown once, kept as a sha256, revoked at once.

Every function takes an open session and leaves the commit to its caller.
"""

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from speculoos.errors import Conflict, NotFound
from tracking.names import check_name
from tracking.tables import ApiKey, now

PREFIX = "sk-speculoos-"
SECRET_BYTES = 32
HINT_LENGTH = len(PREFIX) + 3
USED_EVERY = timedelta(minutes=1)


def make_key(session: Session, name: str) -> tuple[ApiKey, str]:
    """A new key and its secret, which is nowhere else. Raises BadInput, or Conflict when a live key has the name."""
    name = check_name(name)
    if session.scalar(select(ApiKey).where(ApiKey.name == name, ApiKey.revoked_at.is_(None))):
        raise Conflict(f"There is a key named {name!r} already; revoke it first or choose another name.")
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    key = ApiKey(name=name, sha256=hashed(secret), hint=secret[:HINT_LENGTH])
    session.add(key)
    session.flush()
    return key, secret


def list_keys(session: Session, revoked: bool = False) -> list[ApiKey]:
    """Live keys, oldest first; with `revoked` all of them."""
    query = select(ApiKey).order_by(ApiKey.created_at)
    return list(session.scalars(query if revoked else query.where(ApiKey.revoked_at.is_(None))))


def revoke(session: Session, reference: str) -> ApiKey:
    """End the live key with this name or id. Raises NotFound."""
    key = session.scalar(
        select(ApiKey).where((ApiKey.name == reference) | (ApiKey.id == reference), ApiKey.revoked_at.is_(None))
    )
    if key is None:
        raise NotFound(f"There is no live key {reference!r}; `speculoos keys list` shows those there are.")
    key.revoked_at = now()
    return key


def find_live(session: Session, sha256: str) -> ApiKey | None:
    """The key with this sha256, unless it was revoked."""
    return session.scalar(select(ApiKey).where(ApiKey.sha256 == sha256, ApiKey.revoked_at.is_(None)))


def note_use(session: Session, key_id: str, at: datetime) -> None:
    """Keep when a key was last used, once a minute at most."""
    old = ApiKey.last_used_at.is_(None) | (ApiKey.last_used_at < at - USED_EVERY)
    session.execute(update(ApiKey).where(ApiKey.id == key_id, old).values(last_used_at=at))


def hashed(secret: str) -> str:
    """Its sha256; secrets of 256 random bits need no slower hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def key_view(key: ApiKey) -> dict[str, Any]:
    """A key as JSON, without its hash."""
    return {
        "id": key.id,
        "name": key.name,
        "hint": key.hint,
        "created_at": key.created_at.isoformat(),
        "last_used_at": key.last_used_at.isoformat() if key.last_used_at else None,
        "revoked_at": key.revoked_at.isoformat() if key.revoked_at else None,
    }
