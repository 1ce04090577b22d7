"""One side of a benchmark in its own process, possibly with the code of another commit."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speculoos.settings import PROJECT_ROOT


class BenchmarkSide:
    """A script that answers each JSON line with a JSON line, after a first line when it is ready.

    `given` is its only argument, as JSON. `stderr` None: its stderr is shown.
    """

    def __init__(
        self,
        script: Path,
        given: Mapping[str, Any],
        tree: Path = PROJECT_ROOT,
        environment: Mapping[str, str] = os.environ,
        stderr: int | None = subprocess.DEVNULL,
    ):
        command = [sys.executable, "-P", str(script), json.dumps(given)]
        env = {**environment, "PYTHONPATH": str(tree)}
        self.process = subprocess.Popen(
            command, cwd=tree, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
        )

    def __enter__(self) -> "BenchmarkSide":
        self._read()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.kill()  # it may be blocked by a server
        self.process.wait()

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send a command and return the response. Raises SystemExit if the process ended."""
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{' '.join(self.process.args[:3])} … ended with {self.process.wait()}.")
