"""One-time login links, printed by `up` and `speculoos login-link`.

Each token is an empty file in the home folder, named by the token's sha256. Anyone who can write there can create a
link; using it deletes the file. Neither the database nor a running process is needed.
"""

import hashlib
import secrets
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

from speculoos.settings import Settings

SECONDS = 24 * 3600  # lifetime of an unused link


def create_login_link(settings: Settings, url: str) -> str:
    """A URL below `url` that logs one browser in."""
    folder = _folder(settings)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in folder.iterdir():
        with suppress(OSError):  # another process deleted it first
            if not _is_fresh(old):
                old.unlink()
    token = secrets.token_urlsafe(32)
    (folder / _name(token)).touch(mode=0o600, exist_ok=False)
    return f"{url}/login?{urlencode({'token': token})}"


def consume_login_token(settings: Settings, token: str) -> bool:
    """Whether `token` belongs to a valid link. The link is deleted and cannot be used again."""
    file = _folder(settings) / _name(token)
    with suppress(OSError):
        fresh = _is_fresh(file)
        file.unlink()
        return fresh
    return False


def _folder(settings: Settings) -> Path:
    return settings.home / "secrets" / "login-links"


def _name(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _is_fresh(file: Path) -> bool:
    return time.time() - file.stat().st_mtime < SECONDS
