"""Shared code of all contenders. Runs under the interpreter of the compared library, so it imports only torch.

A contender is a process with its options as JSON in its argument. It writes one JSON line when it is ready and one per
command from standard input, with its peak memory. What libraries print goes to its log (standard error).
"""

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Json = dict[str, Any]


def serve(make: Callable[[Json], tuple[Json, Callable[[Json], Json]]]) -> None:
    """Run a contender: `make(options)` returns its facts and the function that answers a command."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["threads"])
    facts, answer = make(options)
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        report = {**answer(json.loads(line)), "peak_memory_mb": peak_memory_mb()}
        print(json.dumps(report), file=answers, flush=True)


def peak_memory_mb() -> int:
    """Peak resident memory in MiB. `ru_maxrss` would include the memory of the parent before the fork."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
