"""The project's hidden-states server as a separate process, which can be killed and restarted."""

import os
import signal
import time
from pathlib import Path

import httpx

from speculoos.settings import HiddenStatesServer
from tests.tools import zygote
from tests.tools.ports import free_ports

CLONE = Path(__file__).resolve().parents[2]
START_SECONDS = 120


class StateProcess:
    """`speculoos features serve FOLDER` on a port that stays the same across restarts."""

    def __init__(self, folder: Path, home: Path, *options: str, token: str = ""):
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = ["features", "serve", str(folder)]
        self._command += ["--port", str(self.port), *options]
        self._environment = {**os.environ, "SPECULOOS_HOME": str(home), "PYTHONPATH": str(CLONE)}
        self._environment |= {"SPECULOOS_FEATURES_TOKEN": token} if token else {}
        self.process: zygote.Popen | zygote.Forked | None = None

    def server(self, name: str = "here", **options: object) -> HiddenStatesServer:
        """The server's entry in settings.toml."""
        return HiddenStatesServer(name, self.url, **options)

    def start(self) -> "StateProcess":
        self.process = zygote.begin("cli.main", self._command, self._environment)
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            assert self.process.poll() is None, "the server of hidden states ended at its start"
            assert time.monotonic() < deadline, "the server of hidden states does not answer"
            time.sleep(0.1)
        return self

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    close = kill

    def __enter__(self) -> "StateProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
