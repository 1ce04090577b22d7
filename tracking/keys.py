"""API keys of the inference server: shown once, stored as a sha256, revocable.

Functions take an open session; the caller commits.
"""

import hashlib
import secrets
from datetime import datetime, timedelta

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
    """(key, secret); the secret is not stored. Raises BadInput, or Conflict if a live key has the name."""
    name = check_name(name)
    if session.scalar(select(ApiKey).where(ApiKey.name == name, ApiKey.revoked_at.is_(None))):
        raise Conflict(f"There is a key named {name!r} already; revoke it first or choose another name.")
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    key = ApiKey(name=name, sha256=hashed(secret), hint=secret[:HINT_LENGTH])
    session.add(key)
    session.flush()
    return key, secret


def list_keys(session: Session, revoked: bool = False) -> list[ApiKey]:
    """Live keys, oldest first; with `revoked` also revoked ones."""
    query = select(ApiKey).order_by(ApiKey.created_at)
    return list(session.scalars(query if revoked else query.where(ApiKey.revoked_at.is_(None))))


def revoke(session: Session, reference: str) -> ApiKey:
    """Revoke the live key with this name or id. Raises NotFound."""
    query = select(ApiKey).where((ApiKey.name == reference) | (ApiKey.id == reference), ApiKey.revoked_at.is_(None))
    if (key := session.scalar(query)) is None:
        raise NotFound(f"There is no live key {reference!r}; `speculoos keys list` lists the live keys.")
    key.revoked_at = now()
    return key


def find_live(session: Session, sha256: str) -> ApiKey | None:
    return session.scalar(select(ApiKey).where(ApiKey.sha256 == sha256, ApiKey.revoked_at.is_(None)))


def note_use(session: Session, key_id: str, at: datetime) -> None:
    """Store when a key was last used, at most once a minute."""
    old = ApiKey.last_used_at.is_(None) | (ApiKey.last_used_at < at - USED_EVERY)
    session.execute(update(ApiKey).where(ApiKey.id == key_id, old).values(last_used_at=at))


def hashed(secret: str) -> str:
    """The sha256 of a secret. Secrets of 256 random bits need no slower hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
