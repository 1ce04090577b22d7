"""Load that comes and goes on one core: `python -m benchmarks.noise --seed 1`, until it is ended or its parent is.

Busy and idle by turns of random length, between a quarter of a second and four seconds each: half of the time in all.
"""

import argparse
import os
import time

import numpy as np

TURN_SECONDS = (0.25, 4.0)
SIZE = 1024
"""Rows of a square matrix: 4 MiB, more than a core's own cache."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    if hasattr(os, "sched_setaffinity"):  # the last of the cores that we may use
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    draw, parent = np.random.default_rng(args.seed), os.getppid()
    print("ready", flush=True)
    while os.getppid() == parent:
        work(draw.uniform(*TURN_SECONDS))
        time.sleep(draw.uniform(*TURN_SECONDS))


def work(seconds: float) -> None:
    """Keep this core busy so long."""
    matrix, end = np.ones((SIZE, SIZE), np.float32), time.monotonic() + seconds
    while time.monotonic() < end:
        matrix @ matrix


if __name__ == "__main__":
    main()
