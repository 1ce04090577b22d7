"""HTTP servers of this process, or of a process of their own, in place of servers of others."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CLONE = Path(__file__).parents[2]


class Handler(BaseHTTPRequestHandler):
    """Base of the handlers: JSON in and out, no log."""

    protocol_version = "HTTP/1.1"

    def read_json(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def send_json(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        self.send(status, json.dumps(value).encode(), {**(headers or {}), "Content-Type": "application/json"})

    def send(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve in threads of this process, on a free port; yields the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def start_server(module: str, port_file: Path, *arguments: object) -> subprocess.Popen[bytes]:
    """Start `module`, which calls `serve_process`; returns once it has written its port to `port_file`."""
    process = subprocess.Popen([sys.executable, "-m", module, str(port_file), *map(str, arguments)], cwd=CLONE)
    while not port_file.exists():
        assert process.poll() is None, f"{module} has ended"
        time.sleep(0.02)
    return process


@contextmanager
def server_process(module: str, port_file: Path, *arguments: object) -> Iterator[str]:
    """Run `module` for the duration of the block; yields its URL."""
    process = start_server(module, port_file, *arguments)
    try:
        yield f"http://127.0.0.1:{port_file.read_text()}"
    finally:
        process.kill()
        process.wait()


def serve_process(handler: type[BaseHTTPRequestHandler], port: int = 0) -> None:
    """Serve for the life of this process; its first argument names the file to which the port is written."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    temporary = Path(sys.argv[1] + ".part")
    temporary.write_text(str(server.server_port))
    temporary.rename(sys.argv[1])
    server.serve_forever()
