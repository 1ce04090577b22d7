"""A process that talks to one hub: huggingface_hub reads its address at import, so each hub needs its own process."""

import json
import os
import subprocess
import sys
from pathlib import Path

CLONE = Path(__file__).parents[2]
ANSWER = """
import json, os, sys
from speculoos.errors import SpeculoosError
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print is no answer
for line in sys.stdin:
    try:
        answer = work(*json.loads(line))
    except SpeculoosError as error:
        answer = {"error": type(error).__name__, "says": f"{error} {error.hint}"}
    print(json.dumps(answer), file=answers, flush=True)
"""


class HubClient:
    """`code` defines `work(*arguments)`; `ask` returns its result or error. What the process prints is in `said`."""

    def __init__(self, code: str, hub: str, home: Path, offline: bool = False):
        home.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": str(int(offline)), "HF_HOME": str(home)}
        env["HF_HUB_DISABLE_XET"] = "1"
        self._output = home / "said"
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code + ANSWER],
                **{"env": env, "cwd": CLONE, "text": True},
                **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": output},
            )

    @property
    def said(self) -> str:
        return self._output.read_text()

    def ask(self, *arguments: object) -> dict:
        self._process.stdin.write(json.dumps(arguments, default=str) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self.said
        return json.loads(answer)

    def __enter__(self) -> "HubClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
