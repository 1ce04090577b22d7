"""The webhook that is notified of ended jobs: one URL per home folder, stored like a password because such URLs often
contain a token; protected against server-side request forgery (SSRF).

All addresses of the host must be public, and the connection uses a checked address, so that DNS cannot return another
one the second time. Redirects are not followed and the response is not read. The operator can allow internal hosts.
"""

import ipaddress
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculoos.errors import BadInput, NotFound, Unavailable
from speculoos.files import new_private_file
from speculoos.settings import Settings

if TYPE_CHECKING:
    import httpx  # every worker imports this module, and few send anything

TIMEOUT_SECONDS = 10.0
LONGEST_URL = 2000
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # IPv6 addresses that embed IPv4 addresses (RFC 6052)
INSIDE = (ipaddress.ip_network("64:ff9b:1::/48"), ipaddress.ip_network("fec0::/10"))
"""Internal addresses that `ipaddress` treats as global: local IPv4/IPv6 translation (RFC 8215) and site-local."""


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
    return check_url(url, settings.webhook_hosts).host if url else ""


def store_webhook(settings: Settings, url: str) -> None:
    """Store the URL. Raises BadInput for an invalid one, Unavailable for an unknown host."""
    parts = check_url(url, settings.webhook_hosts)
    resolve_public_address(parts, settings.webhook_hosts)
    path = webhook_file(settings)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with new_private_file(path) as handle:
        handle.write(f"{url.strip()}\n".encode())


def delete_webhook(settings: Settings) -> None:
    webhook_file(settings).unlink(missing_ok=True)


def post_to_webhook(settings: Settings, content: Mapping[str, Any]) -> None:
    """POST `content` to the webhook. Raises NotFound if none is set, and the errors of `post`."""
    if not (url := webhook_url(settings)):
        raise NotFound("No webhook address is set; enter one first.")
    post(url, content, settings.webhook_hosts)


def check_url(url: str, internal_hosts: Collection[str] = ()) -> "httpx.URL":
    """Parse `url`. Raises BadInput unless it is an https URL with a host; http is allowed for `internal_hosts`."""
    import httpx

    try:
        parts = httpx.URL(url.strip())
    except (httpx.InvalidURL, TypeError, ValueError):
        raise BadInput("This is not a valid URL; it must begin with https:// and a host.") from None
    if len(url) > LONGEST_URL:
        raise BadInput(f"The URL is longer than {LONGEST_URL} characters.")
    if parts.scheme not in ("http", "https") or not parts.host or parts.userinfo:
        raise BadInput("The URL must begin with https:// and a host, without a user name or password.")
    if parts.scheme == "http" and not _is_internal_host(parts, internal_hosts):
        raise BadInput("The URL must begin with https://, so that the connection is encrypted.")
    return parts


def post(url: str, content: Mapping[str, Any], internal_hosts: Collection[str] = ()) -> None:
    """POST `content` as JSON once, to a checked address with the certificate of the host. Raises BadInput or
    Unavailable. Messages contain only the host: the rest of the URL may be a secret."""
    import httpx

    parts = check_url(url, internal_hosts)
    direct = parts.copy_with(host=resolve_public_address(parts, internal_hosts))
    headers = {"Host": parts.netloc.decode("ascii")}
    extensions = {"sni_hostname": parts.raw_host.decode("ascii")}
    try:
        with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as client:
            request = client.build_request("POST", direct, json=content, headers=headers, extensions=extensions)
            response = client.send(request, stream=True, follow_redirects=False)
            response.close()
    except httpx.HTTPError as error:
        raise Unavailable(f"{parts.host} could not be reached ({type(error).__name__}).") from None
    if not 200 <= response.status_code < 300:
        raise Unavailable(f"{parts.host} did not accept the message (HTTP status {response.status_code}).")


def resolve_public_address(parts: "httpx.URL", internal_hosts: Collection[str] = ()) -> str:
    """Resolve the host to an address. Raises BadInput if one is internal, Unavailable if there is none."""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        entries = socket.getaddrinfo(parts.host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Unavailable(f"The host {parts.host} cannot be resolved.") from None
    addresses = [str(entry[4][0]).partition("%")[0] for entry in entries]
    if not _is_internal_host(parts, internal_hosts) and not all(map(is_public, addresses)):
        raise BadInput(
            f"{parts.host} is inside this network, which webhooks must not reach; "
            "the operator of the server can allow it with SPECULOOS_WEBHOOK_HOSTS."
        )
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an IP address, or the IPv4 address embedded in it, is public."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        if any(ip in network for network in INSIDE):
            return False
        if ip in TRANSLATED:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        if inner := ip.ipv4_mapped or ip.sixtofour:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


def _is_internal_host(parts: "httpx.URL", internal_hosts: Collection[str]) -> bool:
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return bool({parts.host.lower(), f"{parts.host.lower()}:{port}"} & {host.lower() for host in internal_hosts})
