"""Ports for servers that tests start."""

import itertools
import os
import socket

PER_WORKER = 1000
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 12
FIRST = 20_000 + PER_WORKER * WORKER
"""Below 32768, where Linux begins to choose ports itself: else another process could be given a port between the check
here and the start of the test's server. Each pytest worker has its own range."""
_counter = itertools.count(os.getpid())  # other test runs on this machine start elsewhere in the range


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address on which nothing listens; no other call returns them soon."""
    ports = (FIRST + number % PER_WORKER for number in _counter)
    return list(itertools.islice(filter(_is_free, ports), count))


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
