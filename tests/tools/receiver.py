"""A local HTTP server that receives webhook notifications, in place of a chat service."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.tools.local_server import Handler, serving


@dataclass
class Receiver:
    """Stores received notifications in `got` as (path, host, content) and responds with `status` once `may_respond`."""

    host: str = ""
    status: int = 200
    may_respond: threading.Event = field(default_factory=threading.Event)
    got: list[tuple[str, str, dict]] = field(default_factory=list)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver for the duration of the block."""
    receiver = Receiver()
    receiver.may_respond.set()

    class ReceivingHandler(Handler):
        def do_POST(self) -> None:
            receiver.may_respond.wait()
            receiver.got.append((self.path, self.headers["Host"], self.read_json()))
            self.send(receiver.status, b"", {"Location": f"http://{receiver.host}/elsewhere"})

    with serving(ReceivingHandler) as origin:
        receiver.host = origin.removeprefix("http://")
        yield receiver
        receiver.may_respond.set()
