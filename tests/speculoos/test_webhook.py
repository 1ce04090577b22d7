"""Webhook messages are sent to the configured address and never into this machine's own network."""

import socket
from dataclasses import replace

import pytest

from speculoos import webhook
from speculoos.errors import BadInput, NotFound, SpeculoosError, Unavailable
from speculoos.settings import Settings
from tests.tools.receiver import Receiver

SECRET = "/hooks/T0/very-secret-token"


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
        *("64:ff9b:1::7f00:1", "fec0::2"),
    ],
)
def test_no_address_of_the_own_network_is_public(address: str) -> None:
    assert not webhook.is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::101:101"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert webhook.is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        *("", "nonsense", "ftp://example.org/x", "https://", "https:///path", "file:///etc/passwd"),
        *("https://name:word@example.org/", "http://example.org/", "https://" + "x" * 2000 + ".org", "https://[::1"),
    ],
)
def test_what_is_no_https_address_of_a_host_is_refused(url: str) -> None:
    with pytest.raises(BadInput):
        webhook.check_url(url)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"])
def test_the_own_machine_under_any_name_gets_nothing(receiver: Receiver, host: str) -> None:
    port = receiver.host.rpartition(":")[2]
    with pytest.raises(SpeculoosError):
        webhook.post(f"https://{host}:{port}/", {"text": "hello"})
    assert not receiver.got


def test_a_name_is_resolved_once_and_the_checked_address_is_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that returns a public address first and an internal one the second time."""
    port, answers = int(receiver.host.rpartition(":")[2]), ["203.0.113.1", "127.0.0.1", "127.0.0.1"]

    def resolve(*_: object, **__: object) -> list[tuple]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(webhook, "is_public", lambda address: address == "203.0.113.1")
    parts = webhook.check_url(f"https://changes.example:{port}/")
    assert webhook.resolve_public_address(parts) == "203.0.113.1" and len(answers) == 2


def test_one_message_goes_to_a_host_that_the_operator_names(home: Settings, receiver: Receiver) -> None:
    settings = replace(home, webhook_hosts=(receiver.host,))
    webhook.store_webhook(settings, f" http://{receiver.host}{SECRET} ")
    webhook.post_to_webhook(settings, {"text": "“train” is done"})
    assert receiver.got == [(SECRET, receiver.host, {"text": "“train” is done"})]


def test_the_address_is_kept_for_its_owner_alone_and_named_by_host(home: Settings, receiver: Receiver) -> None:
    settings = replace(home, webhook_hosts=("127.0.0.1",))
    webhook.store_webhook(settings, f"http://{receiver.host}{SECRET}")
    assert webhook.webhook_file(home).stat().st_mode & 0o077 == 0
    assert webhook.webhook_host(settings) == "127.0.0.1"
    webhook.delete_webhook(settings)
    webhook.delete_webhook(settings)
    assert webhook.webhook_url(settings) == webhook.webhook_host(settings) == ""
    with pytest.raises(NotFound, match="enter one first"):
        webhook.post_to_webhook(settings, {})


@pytest.mark.parametrize("status", [301, 307, 404, 500])
def test_a_refusal_is_one_sentence_without_the_address_and_no_redirect_is_followed(
    home: Settings, receiver: Receiver, status: int
) -> None:
    settings = replace(home, webhook_hosts=(receiver.host,))
    webhook.store_webhook(settings, f"http://{receiver.host}{SECRET}")
    receiver.status = status
    with pytest.raises(Unavailable, match=rf"127.0.0.1 did not accept the message \(HTTP status {status}\)") as caught:
        webhook.post_to_webhook(settings, {})
    assert "secret" not in str(caught.value) and len(receiver.got) == 1


def test_an_unreachable_host_is_an_error(home: Settings) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{closed.getsockname()[1]}"
    settings = replace(home, webhook_hosts=(host,))
    webhook.store_webhook(settings, f"http://{host}/")
    with pytest.raises(Unavailable, match="could not be reached"):
        webhook.post_to_webhook(settings, {})
