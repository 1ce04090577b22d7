"""One contender of a race as a process of its own, which may run an older commit's modules."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speculoos.settings import CLONE


class Side:
    """A started script that answers one line of JSON with one line of JSON; its first line says that it is ready.
    `given` is its one argument, as JSON. `stderr` None: what it writes there is shown."""

    def __init__(
        self,
        script: Path,
        given: Mapping[str, Any],
        tree: Path = CLONE,
        environment: Mapping[str, str] = os.environ,
        stderr: int | None = subprocess.DEVNULL,
    ):
        command = [sys.executable, "-P", str(script), json.dumps(given)]
        own = {**environment, "PYTHONPATH": str(tree)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr}
        self.process = subprocess.Popen(command, cwd=tree, env=own, text=True, **pipes)

    def __enter__(self) -> "Side":
        self._read()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.kill()  # it may wait for a server that stands still
        self.process.wait()

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """What it answers. Raises SystemExit where it ended instead."""
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{' '.join(self.process.args[:3])} … ended with {self.process.wait()}.")
