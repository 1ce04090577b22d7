"""Clients that load a workbench: idle pages that poll, visitors that open pages and click, readers of live answers."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
from sqlalchemy import select

from app import turns
from app.paths import PAGES as PATHS
from speculoos.settings import Settings
from tests.tools.page_client import PageClient, follow
from tests.tools.running import program_pids
from tracking import db, runs
from tracking.tables import Job

PAGES = tuple(PATHS.values())
MEASURED = ("web", "inference", "worker-gpu", "worker-io", "reconciler", "broker")
STAY_SECONDS = (4.0, 12.0)
"""Time that a simulated visitor stays on a page."""
SETTLE_SECONDS = 30.0
"""Time until an idle page polls at its slowest rate."""
MODEL = "tiny@heads"


@dataclass
class LoadTarget:
    """The measured workbench, with the durations of actions (`taken`: seconds by name)."""

    url: str
    settings: Settings
    taken: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: list[str] = field(default_factory=list)

    def note(self, action: str, seconds: float) -> None:
        self.taken[action].append(seconds)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False)

    @asynccontextmanager
    async def clients(self, count: int) -> AsyncIterator[list[httpx.AsyncClient]]:
        """One HTTP client per visitor."""
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(self.client()) for _ in range(count)]


def processes(settings: Settings) -> dict[str, psutil.Process]:
    """The measured processes of a home, by program name."""
    pids = program_pids(settings)
    return {name: psutil.Process(pids[name]) for name in MEASURED if name in pids}


def cpu_seconds(processes: dict[str, psutil.Process]) -> dict[str, float]:
    return {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}


def shares(before: dict[str, float], after: dict[str, float], seconds: float) -> dict[str, float]:
    """CPU share of one core, by process."""
    return {name: round((after[name] - before[name]) / seconds, 3) for name in before}


async def idle(target: LoadTarget, clients: int, seconds: float, settle: float = 0.0) -> dict[str, Any]:
    """Measure idle Jobs pages after they have been open for `settle` seconds."""
    async with target.clients(clients) as connections:
        pages = [PageClient(client, "/runs", target.note) for client in connections]
        for page in pages:
            await page.open()
        settled_at = time.monotonic() + settle
        await asyncio.gather(*(page.stay(settled_at) for page in pages))
        polls = len(target.taken["poll"])
        programs = processes(target.settings)
        before, began = cpu_seconds(programs), time.monotonic()
        await asyncio.gather(*(page.stay(began + seconds) for page in pages))
        elapsed = time.monotonic() - began
        after = cpu_seconds(programs)
    target_polls = len(target.taken["poll"]) - polls
    return {
        "pages": clients,
        "seconds": round(elapsed),
        "polls_per_second": round(target_polls / elapsed, 1),
        "cpu_share": shares(before, after, elapsed),
    }


async def visitor(target: LoadTarget, client: httpx.AsyncClient, number: int, until: float) -> None:
    """Open random pages, stay on each for a while, and click on jobs."""
    rng = random.Random(number)
    await asyncio.sleep(rng.uniform(0, STAY_SECONDS[1]))
    while time.monotonic() < until:
        page = PageClient(client, rng.choice(PAGES), target.note)
        await page.open()
        await page.stay(min(until, time.monotonic() + rng.uniform(*STAY_SECONDS) / 2))
        if page.path == "/runs":
            await click_through_jobs(target, page, rng)
        await page.stay(min(until, time.monotonic() + rng.uniform(*STAY_SECONDS) / 2))


async def click_through_jobs(target: LoadTarget, page: PageClient, rng: random.Random) -> None:
    """Change the filter, then select a job."""
    await page.act("jobs-filter", "change", rng.choice(["All", "Active", "Done"]))
    with db.reading(target.settings) as session:
        ids = list(session.scalars(select(Job.id).order_by(Job.created_at.desc()).limit(10)))
    if ids:
        await page.pick("jobs-table", rng.choice(ids))


@dataclass
class Streams:
    """Counts of streams: runs, tokens, runs whose tokens differ from the stored ones (`dropped`), reconnections."""

    runs: int = 0
    tokens: int = 0
    dropped: int = 0
    reconnected: int = 0

    async def read(self, target: LoadTarget, client: httpx.AsyncClient, number: int, until: float) -> None:
        """Request and read one answer after another, like the Playground."""
        while time.monotonic() < until:
            question = f"Stream {number}, answer {self.runs}: tell me a story."
            sampling = turns.TurnOptions(max_tokens=120)
            run, refused = await asyncio.to_thread(turns.next_turn, target.settings, "", MODEL, question, sampling)
            if refused:
                target.failed.append(refused)
                await asyncio.sleep(1)
                continue
            result = await follow(client, run.id)
            with db.reading(target.settings) as session:
                tokens = runs.token_ids(session, run.id)
            self.runs, self.tokens = self.runs + 1, self.tokens + len(tokens)
            self.reconnected += result.reconnected
            self.dropped += result.token_ids != tokens or not tokens or result.end["state"] != "SUCCEEDED"
