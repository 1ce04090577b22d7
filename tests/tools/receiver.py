"""A real server on loopback that takes messages, in place of somebody's chat."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer


class Receiver:
    """Keeps what it was sent as (path, host, content) and answers `status`."""

    def __init__(self) -> None:
        self.status = 200
        self.got: list[tuple[str, str, dict]] = []
        self.server = HTTPServer(("127.0.0.1", 0), self._handler())
        self.host = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()

    def _handler(receiver) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((self.path, self.headers["Host"], json.loads(body)))
                self.send_response(receiver.status)
                self.send_header("Location", f"http://{receiver.host}/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@contextmanager
def receiving() -> Iterator[Receiver]:
    """One for the time of the block."""
    made = Receiver()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
