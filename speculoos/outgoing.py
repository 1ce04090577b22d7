"""A POST to an address that somebody typed into a page: it must not become a way into this machine's own network.

Every address behind the name must be a public one, and the connection goes to an address that was looked at: a name
server cannot answer differently the second time. No redirect is followed and no answer is read. Hosts that the operator
names may be internal ones.
"""

import ipaddress
import socket
from collections.abc import Collection, Mapping
from typing import Any

import httpx

from speculoos.errors import BadInput, Unavailable

TIMEOUT_SECONDS = 10.0
LONGEST_URL = 2000
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that stand for IPv4 ones (RFC 6052)."""
INSIDE = (ipaddress.ip_network("64:ff9b:1::/48"), ipaddress.ip_network("fec0::/10"))
"""Addresses of a network's own that are called global: where it translates IPv6 itself (RFC 8215), and a site's."""


def check_url(url: str, own_hosts: Collection[str] = ()) -> httpx.URL:
    """`url` taken apart. Raises BadInput for what is no https address of a host; http only to `own_hosts`."""
    try:
        parts = httpx.URL(url.strip())
    except (httpx.InvalidURL, TypeError, ValueError):
        raise BadInput("This is not an address; one begins with https:// and a host.") from None
    if len(url) > LONGEST_URL:
        raise BadInput(f"The address is longer than {LONGEST_URL} characters.")
    if parts.scheme not in ("http", "https") or not parts.host or parts.userinfo:
        raise BadInput("The address must begin with https:// and a host, without a name or password before it.")
    if parts.scheme == "http" and not _is_own(parts, own_hosts):
        raise BadInput("The address must begin with https://, so that nobody on the way reads it.")
    return parts


def post(url: str, content: Mapping[str, Any], own_hosts: Collection[str] = ()) -> None:
    """POST `content` as JSON once. Raises BadInput or Unavailable with a sentence that names the host, and no more of
    the address: the rest may be a secret."""
    parts = check_url(url, own_hosts)
    address = reachable(parts, own_hosts)
    try:
        status = _post(parts, address, content)
    except httpx.HTTPError as error:
        raise Unavailable(f"{parts.host} could not be reached ({type(error).__name__}).") from None
    if not 200 <= status < 300:
        raise Unavailable(f"{parts.host} answered {status} instead of taking the message.")


def _post(parts: httpx.URL, address: str, content: Mapping[str, Any]) -> int:
    """The status of the answer. To `address`, under the name and with the certificate of the host."""
    headers = {"Host": parts.netloc.decode("ascii")}
    name = {"sni_hostname": parts.raw_host.decode("ascii")}
    with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        direct = parts.copy_with(host=address)
        request = client.build_request("POST", direct, json=content, headers=headers, extensions=name)
        answer = client.send(request, stream=True, follow_redirects=False)
        answer.close()
        return answer.status_code


def reachable(parts: httpx.URL, own_hosts: Collection[str] = ()) -> str:
    """The address to connect to. Raises BadInput where the host has an internal one, Unavailable where it has none."""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(parts.host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise Unavailable(f"The host {parts.host} is not known.") from None
    addresses = [str(entry[4][0]).partition("%")[0] for entry in found]
    if not _is_own(parts, own_hosts) and not all(map(is_public, addresses)):
        raise BadInput(
            f"{parts.host} is inside this network, where pages send nothing; "
            "whoever runs the server can allow it with SPECULOOS_WEBHOOK_HOSTS."
        )
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the internet, also where it stands for another one."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        if any(ip in network for network in INSIDE):
            return False
        if ip in TRANSLATED:
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
        if inner := ip.ipv4_mapped or ip.sixtofour:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


def _is_own(parts: httpx.URL, own_hosts: Collection[str]) -> bool:
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return bool({parts.host.lower(), f"{parts.host.lower()}:{port}"} & {host.lower() for host in own_hosts})
