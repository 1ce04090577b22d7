"""One training of a race of benchmarks.feature_source: the real loop, which stops after each round until it is told to
go on. Settings come as JSON in the first argument; a round's figures go out as a line of JSON."""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.common import peak_memory_mb
from methods import train_config
from speculoos.reporting import Silent
from speculoos.settings import StateServer
from training.hidden_states.connect import Elsewhere
from training.loop import Trainer

ENDLESS = {"max_steps": 10**6, "epochs": 0, "eval_every": 0, "save_every": 0, "samples": 0, "held_out": 0.0}
ENDLESS |= {"cache_features_mb": 0, "schedule": "constant", "device": "cpu"}


class Rounds(Silent):
    """Ends a round after `steps` steps."""

    def __init__(self, steps: int):
        self.steps, self.losses, self.trainer = steps, [], None
        self._mark = (0.0, 0.0, 0)

    def metrics(self, step: int, values: dict[str, float]) -> None:
        self.losses.append(values["train/loss"])
        if step % self.steps == 0:
            clock, cpu, tokens = self._now()
            seconds, cpu_seconds, count = clock - self._mark[0], cpu - self._mark[1], tokens - self._mark[2]
            say(
                seconds=seconds,
                cpu_seconds=cpu_seconds,
                tokens=count,
                losses=self.losses,
                peak_memory_mb=peak_memory_mb(),
            )
            self.losses = []
            self.wait()

    def wait(self) -> None:
        """Until the next round begins; the end of the input ends the process."""
        if not sys.stdin.readline():
            sys.exit(0)
        self._mark = self._now()

    def _now(self) -> tuple[float, float, int]:
        return time.monotonic(), time.process_time(), self.trainer.tokens_seen


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def main() -> None:
    given = json.loads(sys.argv[1])
    torch.set_num_threads(given["threads"])
    config = train_config(**{**ENDLESS, **given["settings"]})
    elsewhere = Elsewhere(StateServer("here", given["url"])) if given["url"] else None
    rounds = Rounds(given["steps"])
    with tempfile.TemporaryDirectory() as out:
        data = Path(given["data"])
        rounds.trainer = Trainer(config, given["base"], data, Path(out), rounds, given["info"], elsewhere=elsewhere)
        say(ready=True)
        rounds.wait()
        rounds.trainer.run()


if __name__ == "__main__":
    main()
