"""One contender of a race as a process of its own, which may run an older commit's modules."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from speculoos.settings import CLONE


class Side:
    """A started script that answers one line of JSON with one line of JSON; its first line says that it is ready."""

    def __init__(self, script: Path, arguments: Sequence[object], tree: Path = CLONE):
        command = [sys.executable, "-P", str(script), *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, cwd=tree, env=environment, text=True, **pipes)

    def __enter__(self) -> "Side":
        self._read()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
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
        raise SystemExit(f"{' '.join(self.process.args[:4])} … ended with {self.process.wait()}.")
