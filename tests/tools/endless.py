"""A server whose responses never end."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHUNK = b" " * 65_536


class Endless:
    """A context manager: the server on a free local port. `sent` counts the bytes sent so far."""

    def __init__(self) -> None:
        endless = self
        self.sent = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.end_headers()  # HTTP/1.0: the body lasts until the connection closes
                try:
                    while True:
                        self.wfile.write(CHUNK)
                        endless.sent += len(CHUNK)
                except OSError:
                    pass

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.do_GET()

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=[0.01], daemon=True).start()

    def __enter__(self) -> "Endless":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
