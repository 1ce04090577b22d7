"""Removes known secret values from database rows and log files before they are written."""

import os
import re
from contextlib import suppress
from dataclasses import fields
from typing import TextIO

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from speculoos.settings import STORED, Settings, stored_secret

MASK = "•••"
SHORTEST = 6  # minimum length of a secret: shorter values would mask ordinary words
OF_THE_STORE = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Environment variables of S3 clients."""
OF_TRACKERS = ("WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Environment variables of the experiment trackers."""
SINCE_START: list[str] = []
"""Secrets that this process stored since its start; log streams were created with the earlier ones."""
LOOKS_SECRET = re.compile(r"\b(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,})|(?<=://)([^/\s:@]+:[^/\s@]+)(?=@)")


def known_secrets(settings: Settings) -> list[str]:
    """All secret values of this process, longest first."""
    values = {getattr(settings, each.name) for each in fields(settings) if not each.repr}
    values |= {server.key for server in (*settings.endpoints.values(), *settings.state_servers.values())}
    files = (settings.home / "secrets").glob(f"{STORED}*")
    values |= {stored_secret(settings.home, path.name.removeprefix(STORED)) for path in files}
    values |= {_password(url) for url in (settings.database_url, settings.redis_url, settings.store) if url}
    values |= {os.environ.get(name, "") for name in ("HF_TOKEN", *OF_THE_STORE, *OF_TRACKERS)}
    return sorted((s for s in values if len(s) >= SHORTEST), key=len, reverse=True)


def redact(text: str, secrets: list[str]) -> str:
    """The text with known secrets, Hugging Face and OpenAI tokens, and passwords in URLs masked."""
    for secret in (*SINCE_START, *secrets):
        text = text.replace(secret, MASK)
    return LOOKS_SECRET.sub(MASK, text)


def cut_to_words(text: str, most: int) -> str:
    """The text cut to whole words within `most` characters: part of a secret would not be masked."""
    return text if len(text) <= most else f"{text[:most].rpartition(' ')[0]} …"


class RedactingStream:
    """A wrapper of a text stream that masks secrets.

    Write errors (full disk, closed pipe) are ignored, so that work does not fail because of its output.
    """

    def __init__(self, stream: TextIO, secrets: list[str]):
        self._stream = stream
        self._secrets = secrets

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(redact(text, self._secrets))
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def _password(url: str) -> str:
    with suppress(ArgumentError):
        return make_url(url).password or ""
    return ""
