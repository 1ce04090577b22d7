"""Keeping secrets out of rows and log files: known values are replaced before anything is written."""

import os
import re
from contextlib import suppress
from typing import TextIO

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from speculoos.settings import Settings

MASK = "•••"
SHORTEST = 6
"""Shorter values are no secrets, and would mask ordinary words."""
OF_THE_STORE = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""What S3's libraries read from the environment."""
OF_TRACKERS = ("WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "TRACKIO_WRITE_TOKEN")
"""What the trackers' libraries read from it."""
LOOKS_SECRET = re.compile(r"\b(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,})|(?<=://)([^/\s:@]+:[^/\s@]+)(?=@)")


def secrets(settings: Settings) -> list[str]:
    """Every secret value this process knows, longest first."""
    known = {settings.hf_token, settings.inference_token, settings.features_token, settings.password}
    known |= {settings.metrics_token}
    known |= {server.key for server in (*settings.endpoints.values(), *settings.state_servers.values())}
    known |= {_password(url) for url in (settings.database_url, settings.redis_url, settings.store) if url}
    known |= {os.environ.get(name, "") for name in ("HF_TOKEN", *OF_THE_STORE, *OF_TRACKERS)}
    return sorted((s for s in known if len(s) >= SHORTEST), key=len, reverse=True)


def redact(text: str, known: list[str]) -> str:
    """The text without known secrets, and without what looks like a token or a password in a URL."""
    for secret in known:
        text = text.replace(secret, MASK)
    return LOOKS_SECRET.sub(MASK, text)


def cut(text: str, most: int) -> str:
    """The text, or its whole words within `most` characters: the beginning of a secret is masked by nothing."""
    return text if len(text) <= most else f"{text[:most].rpartition(' ')[0]} …"


class RedactingStream:
    """A text stream that hides secrets from what libraries print; everything else is the wrapped stream's.

    What cannot be written (a full disk, a reader that is gone) is dropped: no work fails for a line it printed.
    """

    def __init__(self, stream: TextIO, known: list[str]):
        self._stream = stream
        self._known = known

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(redact(text, self._known))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def _password(url: str) -> str:
    try:
        return make_url(url).password or ""
    except ArgumentError:
        return ""
