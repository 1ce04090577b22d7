"""A local HTTP server that receives webhook notifications, in place of a chat service."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer


class Receiver:
    """Stores received notifications in `got` as (path, host, content) and responds with `status`."""

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
    """Run a receiver for the duration of the block."""
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
