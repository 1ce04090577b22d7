"""Where people want to hear of jobs that have ended: one address of a home, kept like a password, since such addresses
often hold a token."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speculoos import outgoing
from speculoos.errors import NotFound
from speculoos.files import new_private_file
from speculoos.settings import Settings


def file_of(settings: Settings) -> Path:
    return settings.home / "secrets" / "webhook"


def address(settings: Settings) -> str:
    """The address, "" while there is none."""
    try:
        return file_of(settings).read_text().strip()
    except OSError:
        return ""


def host(settings: Settings) -> str:
    """The part of it that may be shown."""
    url = address(settings)
    return outgoing.check_url(url, settings.webhook_hosts).host if url else ""


def keep(settings: Settings, url: str) -> None:
    """Store the address. Raises BadInput, or Unavailable for a host that nobody knows."""
    parts = outgoing.check_url(url, settings.webhook_hosts)
    outgoing.reachable(parts, settings.webhook_hosts)
    path = file_of(settings)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with new_private_file(path) as handle:
        handle.write(f"{url.strip()}\n".encode())


def forget(settings: Settings) -> None:
    file_of(settings).unlink(missing_ok=True)


def send(settings: Settings, content: Mapping[str, Any]) -> None:
    """POST `content` there. Raises NotFound while there is no address, else what `outgoing.post` does."""
    if not (url := address(settings)):
        raise NotFound("No address for messages is kept yet; enter one first.")
    outgoing.post(url, content, settings.webhook_hosts)
