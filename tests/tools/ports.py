"""Ports for servers that tests start."""

import socket


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address where nobody listens now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
