"""Training from the server of hidden states in another process against a base in the training's own, in one run.

    python -m benchmarks.feature_source --data FOLDER --json OUT --trainer-threads 2 --server-threads 2

Both sides are the real loop on the same batches, nothing kept. They take rounds of some steps in turn, and while one is
at work the other, and the server, stand still (SIGSTOP), so what was asked ahead is not computed in the other's time.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import torch

from benchmarks.report import conditions, finish, load_average
from benchmarks.side import Side
from benchmarks.tables import table_lines, wishes
from models.identity import weights_sha256
from models.starter import starter_path
from speculoos.errors import Unavailable
from speculoos.settings import CLONE

SIDE = Path(__file__).with_name("feature_source_side.py")
WANTED = 0.8
"""Of the local side's tokens a second."""
START_SECONDS = 180


def side(given: dict[str, Any], environment: dict[str, str]) -> Side:
    """A training as a process that stands still between its rounds; what it says of errors is shown."""
    return Side(SIDE, given, environment=environment, stderr=None)


@contextmanager
def serving(args: argparse.Namespace) -> Iterator[tuple[subprocess.Popen, str]]:
    """The server's process and its address."""
    url = f"http://127.0.0.1:{args.port}"
    command = [sys.executable, "-m", "speculoos.cli", "features", "serve", str(args.base), "--port", str(args.port)]
    command += ["--threads", str(args.server_threads), "--dtype", args.base_dtype, "--device", "cpu"]
    process = subprocess.Popen(command, cwd=CLONE, env=environment(args), preexec_fn=lambda: os.nice(args.server_nice))
    try:
        _await(process, url)
        yield process, url
    finally:
        process.kill()
        process.wait()


def _await(process: subprocess.Popen, url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/healthz", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise Unavailable("The server of hidden states did not start; its output says why.")


def environment(args: argparse.Namespace) -> dict[str, str]:
    """Ours; threads that wait for each other spin or sleep, as `--wait-policy` says."""
    policy = {"OMP_WAIT_POLICY": args.wait_policy.upper()} if args.wait_policy else {}
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | policy


def race(args: argparse.Namespace, method: str) -> dict[str, Any]:
    """Rounds of one method; figures of both sides."""
    settings = {"method": method, "batch_tokens": args.batch_tokens, "max_length": args.max_length}
    given = {"settings": {**settings, "base_dtype": args.base_dtype}, "steps": args.steps, "base": str(args.base)}
    given |= {"data": str(args.data), "info": {"base_sha256": weights_sha256(args.base)}}
    afar = {**given["settings"], "hidden_states": "here", "hidden_states_ahead": args.ahead}
    with (
        serving(args) as (server, url),
        side({**given, "threads": args.local_threads, "url": ""}, dict(os.environ)) as local,
        side({**given, "settings": afar, "threads": args.trainer_threads, "url": url}, environment(args)) as remote,
    ):
        sides = {"local": local, "remote": remote}
        rounds = [taken(sides, server, number) for number in range(args.warm_up + args.rounds)]
    return figures(rounds, args.warm_up)


def taken(sides: dict[str, Side], server: subprocess.Popen, number: int) -> dict[str, Any]:
    """A round of each, timed by the side itself, in changing order."""
    got = {}
    for name in ("local", "remote") if number % 2 else ("remote", "local"):
        server.send_signal(signal.SIGCONT if name == "remote" else signal.SIGSTOP)
        got[name] = sides[name].ask({})
    server.send_signal(signal.SIGSTOP)
    speeds = ", ".join(f"{name} {one['tokens'] / one['seconds']:.1f} tokens/s" for name, one in got.items())
    print(f"round {number + 1}: {speeds}", flush=True)
    return got


def figures(rounds: list[dict[str, Any]], warm_up: int) -> dict[str, Any]:
    """Medians over the rounds after warm-up; the losses of all are compared."""
    counted = rounds[warm_up:]
    ratios = [one["local"]["seconds"] / one["remote"]["seconds"] for one in counted]
    sides = {
        name: {
            "tokens_per_second": round(statistics.median(r[name]["tokens"] / r[name]["seconds"] for r in counted), 1),
            "cpu_seconds": round(statistics.median(r[name]["cpu_seconds"] for r in counted), 2),
            "peak_memory_mb": max(r[name]["peak_memory_mb"] for r in rounds),
        }
        for name in ("local", "remote")
    }
    pairs = [pair for r in rounds for pair in zip(r["local"]["losses"], r["remote"]["losses"], strict=True)]
    ratio = round(statistics.median(ratios), 3)
    return {
        "sides": sides,
        "remote_of_local": ratio,
        "ratios": [round(each, 3) for each in ratios],
        "largest_loss_difference": max(abs(ours - theirs) for ours, theirs in pairs),
        "wanted": {f"at least {WANTED} of local": ratio >= WANTED},
    }


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    threads = result["threads"]
    lines = [
        f"{result['date']}, {result['machine']['processor']}, {result['machine']['cores']} cores, load "
        f"{result['load'][0]} to {result['load'][1]}; threads: local {threads['local']}, training "
        f"{threads['training']}, server {threads['server']}.",
        "",
    ]
    rows = []
    for method, one in result["methods"].items():
        speeds = [one["sides"][name]["tokens_per_second"] for name in ("local", "remote")]
        rows.append((method, *speeds, one["remote_of_local"], f"{one['largest_loss_difference']:.1e}"))
    lines += table_lines("| method | local, tokens/s | from the server | part | largest difference of losses |", rows)
    for method, one in result["methods"].items():
        lines += wishes(one["wanted"], f" of {method}")
    return "\n".join(lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    cores = torch.get_num_threads()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=starter_path(), help="Hugging Face folder of the base model")
    parser.add_argument("--data", type=Path, required=True, help="data set folder of the base's own answers")
    parser.add_argument("--methods", nargs="+", default=["eagle3"])
    parser.add_argument("--base-dtype", default="bfloat16", help="precision of the frozen base on both sides")
    parser.add_argument("--batch-tokens", type=int, default=2048, help="tokens of one step, padding included")
    parser.add_argument("--max-length", type=int, default=512, help="longer conversations are cut")
    parser.add_argument("--steps", type=int, default=4, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=8, help="rounds that count")
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before them")
    parser.add_argument("--ahead", type=int, default=2, help="batches asked ahead")
    parser.add_argument("--local-threads", type=int, default=cores)
    parser.add_argument("--trainer-threads", type=int, default=cores)
    parser.add_argument("--server-threads", type=int, default=cores)
    parser.add_argument("--server-nice", type=int, default=0, help="steps by which the server comes after the training")
    parser.add_argument(
        "--wait-policy", choices=("active", "passive"), help="OMP_WAIT_POLICY of training and server apart"
    )
    parser.add_argument("--port", type=int, default=7869)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    before = load_average()
    methods = {method: race(args, method) for method in args.methods}
    threads = {"local": args.local_threads, "training": args.trainer_threads, "server": args.server_threads}
    options = {"ahead": args.ahead, "server_nice": args.server_nice, "wait_policy": args.wait_policy}
    result = conditions(before) | {"threads": threads, **options, "base_dtype": args.base_dtype, "methods": methods}
    finish(result, table(result), args.json)


if __name__ == "__main__":
    main()
