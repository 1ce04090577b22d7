"""Links that let a browser in once, as `up` and `speculoos login-link` print them.

A link's token lies in the home as a file named by its digest, so whoever may write there may make one, and the pages
take it by removing the file. Nothing here needs the database or a running process.
"""

import hashlib
import secrets
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

from speculoos.settings import Settings

SECONDS = 24 * 3600
"""How long a link that nobody used stays good."""


def make_link(settings: Settings, url: str) -> str:
    """An address below `url` that lets one browser in."""
    folder = _folder(settings)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_old(folder)
    token = secrets.token_urlsafe(32)
    (folder / _name(token)).touch(mode=0o600, exist_ok=False)
    return f"{url}/login?{urlencode({'token': token})}"


def use(settings: Settings, token: str) -> bool:
    """Whether `token` is that of a good link; it is none afterwards."""
    file = _folder(settings) / _name(token)
    try:
        fresh = _is_fresh(file)
        file.unlink()
    except OSError:
        return False
    return fresh


def _folder(settings: Settings) -> Path:
    return settings.home / "secrets" / "login-links"


def _name(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _is_fresh(file: Path) -> bool:
    return time.time() - file.stat().st_mtime < SECONDS


def _remove_old(folder: Path) -> None:
    for file in folder.iterdir():
        with suppress(OSError):  # another process was quicker
            if not _is_fresh(file):
                file.unlink()
