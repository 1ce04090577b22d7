"""A workbench under the load of a team: fifty clients on the same machine, which affects the figures.

First idle Jobs pages, then visitors that open pages and click while answers stream, then every page with a long queue.
"""

import asyncio
import os
import statistics
import time
from collections import defaultdict
from datetime import timedelta

import psutil
import pytest

from tests.browser.workbench import add_base, add_heads
from tests.tools.figures import Figures, spread
from tests.tools.page_client import PageClient
from tests.tools.page_load import (
    PAGES,
    SETTLE_SECONDS,
    LoadTarget,
    Streams,
    cpu_seconds,
    idle,
    processes,
    shares,
    visitor,
)
from tests.tools.running import Up
from tracking import db, jobs
from tracking.tables import now

SECONDS = float(os.environ.get("DRILLS_LOAD_SECONDS", "1200"))
CLIENTS, STREAMS, SOME, QUEUED, IDLE_SECONDS, TIMES = 50, 8, 10, 200, 60.0, 5
ACTION_MS, PAGE_MS, POLLING_SHARE = 500.0, 300.0, 0.2
WARM_SHARE = 0.25
"""Share of the run after which caches are filled and memory is compared."""
GROWTH, GROWTH_MB = 0.05, 20.0
"""How much more memory a process may have at the end than after the warm-up: a share, or so many MB if that is more."""
STEADY_SECONDS = 300.0
"""A shorter run says nothing about memory."""


@pytest.mark.drill
@pytest.mark.timeout(int(SECONDS) + 900)
def test_load(up: Up, figures: Figures) -> None:
    up.start()
    add_heads(up, add_base(up), "heads")
    target = LoadTarget(up.url, up.settings)
    polling = asyncio.run(idle(target, CLIENTS, IDLE_SECONDS, SETTLE_SECONDS))
    target.taken.clear()
    queue_jobs(target, SOME)  # for the clicks on a job
    busy = asyncio.run(under_load(target))
    queue_jobs(target, QUEUED - SOME)
    opened = asyncio.run(open_pages(target))
    figures.record(polling=polling, busy=busy, queue={"jobs": QUEUED, "open_ms": opened})
    missed = [f"{path}: {taken['median']} ms" for path, taken in opened.items() if taken["median"] >= PAGE_MS]
    if busy["action_p95_ms"] >= ACTION_MS:
        missed.append(f"page actions: p95 {busy['action_p95_ms']} ms")
    if polling["cpu_share"]["web"] >= POLLING_SHARE:
        missed.append(f"polling of {CLIENTS} pages: {polling['cpu_share']['web']:.0%} of a core")
    if SECONDS >= STEADY_SECONDS:
        missed += [f"memory of {name}: {mb}" for name, mb in busy["memory"].items() if grew(**mb)]
    assert (busy["streams"]["dropped"], busy["restarted"], target.failed) == (0, [], [])
    assert busy["streams"]["runs"] > 0 and busy["streams"]["tokens"] > 0
    assert not missed, "; ".join(missed)


def grew(warm_mb: float, end_mb: float) -> bool:
    return end_mb - warm_mb > max(GROWTH_MB, GROWTH * warm_mb)


async def under_load(target: LoadTarget) -> dict:
    """Run visitors and streams; returns latencies of actions, and CPU share and memory of every process."""
    streams, programs = Streams(), processes(target.settings)
    before, began = cpu_seconds(programs), time.monotonic()
    until = began + SECONDS
    async with target.clients(CLIENTS + STREAMS) as clients:
        visits = [visitor(target, clients[n], n, until) for n in range(CLIENTS)]
        reads = [streams.read(target, clients[CLIENTS + n], n, until) for n in range(STREAMS)]
        warm, *_ = await asyncio.gather(memory_at(programs, began + WARM_SHARE * SECONDS), *visits, *reads)
    passed, after = time.monotonic() - began, processes(target.settings)
    cpu_share, end = shares(before, cpu_seconds(programs), passed), await memory_at(programs, 0)
    actions = [seconds for name, taken in target.taken.items() if name != "poll" for seconds in taken]
    return {
        "seconds": round(passed),
        "clients": CLIENTS,
        "streams": {"at_once": STREAMS, **vars(streams)},
        "cpu_share": cpu_share,
        "memory": {name: {"warm_mb": warm[name], "end_mb": end[name]} for name in programs},
        "restarted": [name for name in programs if after.get(name) != programs[name]],
        "actions_ms": milliseconds(target.taken),
        "action_p95_ms": spread((1000 * s for s in actions), 1)["p95"],
    }


async def memory_at(programs: dict[str, psutil.Process], when: float) -> dict[str, float]:
    """Resident MB of each process at this value of `time.monotonic`, the median of three samples."""
    await asyncio.sleep(max(0.0, when - time.monotonic()))
    samples = []
    for _ in range(3):
        samples.append({name: process.memory_info().rss / 2**20 for name, process in programs.items()})
        await asyncio.sleep(1)
    return {name: round(statistics.median(sample[name] for sample in samples), 1) for name in programs}


def queue_jobs(target: LoadTarget, count: int) -> None:
    """Create queued jobs; their message counts as just sent, so no worker starts them."""
    with db.writing(target.settings) as session:
        for number in range(count):
            job = jobs.create(session, kind="train", queue="gpu", request={}, name=f"queued {number}")
            job.published_at = now() + timedelta(days=1)


async def open_pages(target: LoadTarget) -> dict:
    """Milliseconds to open each page."""
    taken: dict[str, list[float]] = defaultdict(list)
    async with target.client() as client:
        for path in PAGES * TIMES:
            taken[path].append(await PageClient(client, path).open())
    return milliseconds(taken)


def milliseconds(taken: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {name: spread((1000 * s for s in seconds), 1) for name, seconds in sorted(taken.items())}
