"""The webhook that is notified of ended jobs: one URL per home folder, stored like a password because such URLs often
contain a token."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speculoos import outgoing
from speculoos.errors import NotFound
from speculoos.files import new_private_file
from speculoos.settings import Settings


def webhook_file(settings: Settings) -> Path:
    return settings.home / "secrets" / "webhook"


def webhook_url(settings: Settings) -> str:
    """The webhook's URL, "" if none is set."""
    try:
        return webhook_file(settings).read_text().strip()
    except OSError:
        return ""


def webhook_host(settings: Settings) -> str:
    """The host name of the webhook: the only part of the URL that pages may show."""
    url = webhook_url(settings)
    return outgoing.check_url(url, settings.webhook_hosts).host if url else ""


def store_webhook(settings: Settings, url: str) -> None:
    """Store the URL. Raises BadInput for an invalid one, Unavailable for an unknown host."""
    parts = outgoing.check_url(url, settings.webhook_hosts)
    outgoing.resolve_public_address(parts, settings.webhook_hosts)
    path = webhook_file(settings)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with new_private_file(path) as handle:
        handle.write(f"{url.strip()}\n".encode())


def delete_webhook(settings: Settings) -> None:
    webhook_file(settings).unlink(missing_ok=True)


def post_to_webhook(settings: Settings, content: Mapping[str, Any]) -> None:
    """POST `content` to the webhook. Raises NotFound if none is set, and the errors of `outgoing.post`."""
    if not (url := webhook_url(settings)):
        raise NotFound("No webhook address is set; enter one first.")
    outgoing.post(url, content, settings.webhook_hosts)
