"""A server whose responses never end."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.tools.local_server import Handler, serving

CHUNK = b" " * 65_536


@dataclass
class Endless:
    url: str = ""
    sent: int = 0
    """Bytes sent so far."""


@contextmanager
def endless_server() -> Iterator[Endless]:
    endless = Endless()

    class EndlessHandler(Handler):
        protocol_version = "HTTP/1.0"  # the body lasts until the connection closes

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(CHUNK)
                    endless.sent += len(CHUNK)
            except OSError:
                pass

        def do_POST(self) -> None:
            self.read_json()
            self.do_GET()

    with serving(EndlessHandler) as endless.url:
        yield endless
