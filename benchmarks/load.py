"""Load test of a workbench: polling pages, clicks, live streams, a real browser, a long queue.

    python -m benchmarks.load --seconds 1200 --json FILE

Starts its own workbench (`speculoos up`, a tiny model, a temporary home folder, loopback only). Three parts:
1. `--clients` idle Jobs pages: cost of polling, as CPU time of the web process over wall time.
2. For `--seconds`: as many clients that open pages, wait and click; `--streams` streamed answers, each compared with
   the stored run token by token; periodic imports; one Chromium. Measures latency of every action, and CPU share and
   memory of every process.
3. `--jobs` queued jobs: time to open each page.
Needs a git clone, as it uses test tools. The clients run on the same cores, which affects the figures.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import select

from app import turns
from app.views.shell import NAV
from benchmarks.page_client import PageClient, follow
from speculoos.settings import Settings
from tests.browser.workbench import add_base, add_heads
from tests.tools.figures import machine, spread
from tests.tools.running import Up, program_pids
from tracking import db, jobs, runs
from tracking.tables import Job, now
from workers.jobs.requests import ImportPrompts
from workers.jobs.submit import submit

PAGES = tuple(path for _, path in NAV)
MEASURED = ("web", "inference", "worker-gpu", "worker-io", "reconciler", "broker")
MOST_CLIENTS, MOST_SECONDS = 200, 3600
SAMPLE_SECONDS = 5.0
STAY_SECONDS = (4.0, 12.0)
"""Time that a simulated visitor stays on a page."""
LOOK_SECONDS = 4.0
"""Time that the Chromium stays on a page."""
IMPORT_SECONDS = 15.0
SETTLE_SECONDS = 30.0
"""Time until an idle page polls at its slowest rate."""
MODEL = "tiny@heads"
WARM_UP = 0.25
"""Share of the run after which memory is compared, when caches are filled."""


@dataclass
class LoadTarget:
    """The measured workbench, with action durations (seconds by name)."""

    url: str
    settings: Settings
    taken: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: list[str] = field(default_factory=list)

    def note(self, action: str, seconds: float) -> None:
        self.taken[action].append(seconds)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False)


@contextmanager
def workbench(folder: Path) -> Iterator[LoadTarget]:
    """A running workbench with a tiny base model and Medusa heads."""
    up = Up(folder / "home")
    try:
        up.start()
        add_heads(up, add_base(up), "heads")
        yield LoadTarget(up.url, up.settings)
    finally:
        up.end()
        shutil.rmtree(up.settings.run_dir, ignore_errors=True)


def processes(settings: Settings) -> dict[str, psutil.Process]:
    """Processes of this home folder."""
    pids = program_pids(settings)
    return {name: psutil.Process(pids[name]) for name in MEASURED if name in pids}


def cpu_seconds(processes: dict[str, psutil.Process]) -> dict[str, float]:
    return {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}


def shares(before: dict[str, float], after: dict[str, float], seconds: float) -> dict[str, float]:
    """CPU share of one core, by process."""
    return {name: round((after[name] - before[name]) / seconds, 3) for name in before}


async def idle(target: LoadTarget, clients: int, seconds: float, settle: float = 0.0) -> dict[str, Any]:
    """Idle Jobs pages; measured after they have been open for `settle` seconds."""
    async with _clients(target, clients) as connections:
        pages = [PageClient(client, "/jobs", target.note) for client in connections]
        for page in pages:
            await page.open()
        settled = time.monotonic() + settle
        await asyncio.gather(*(page.stay(settled) for page in pages))
        polls = len(target.taken["poll"])
        programs = processes(target.settings)
        before, began = cpu_seconds(programs), time.monotonic()
        await asyncio.gather(*(page.stay(began + seconds) for page in pages))
        passed = time.monotonic() - began
        after = cpu_seconds(programs)
    target_polls = len(target.taken["poll"]) - polls
    return {
        "pages": clients,
        "seconds": round(passed),
        "polls_per_second": round(target_polls / passed, 1),
        "cpu_share": shares(before, after, passed),
    }


@asynccontextmanager
async def _clients(target: LoadTarget, count: int) -> AsyncIterator[list[httpx.AsyncClient]]:
    """One HTTP client per visitor."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(target.client()) for _ in range(count)]


async def visitor(target: LoadTarget, client: httpx.AsyncClient, number: int, until: float) -> None:
    """Open random pages, stay on each for a while, and click on jobs."""
    chance = random.Random(number)
    await asyncio.sleep(chance.uniform(0, STAY_SECONDS[1]))
    while time.monotonic() < until:
        page = PageClient(client, chance.choice(PAGES), target.note)
        await page.open()
        await page.stay(min(until, time.monotonic() + chance.uniform(*STAY_SECONDS) / 2))
        if page.path == "/jobs":
            await click_through_jobs(target, page, chance)
        await page.stay(min(until, time.monotonic() + chance.uniform(*STAY_SECONDS) / 2))


async def click_through_jobs(target: LoadTarget, page: PageClient, chance: random.Random) -> None:
    """Change the filter, then select a job."""
    await page.act("jobs-filter", "change", chance.choice(["All", "Active", "Done"]))
    with db.reading(target.settings) as session:
        ids = list(session.scalars(select(Job.id).order_by(Job.created_at.desc()).limit(10)))
    if ids:
        await page.pick("jobs-table", chance.choice(ids))


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
            sampling = turns.TurnSampling(max_tokens=120)
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


async def importer(target: LoadTarget, folder: Path, until: float) -> int:
    """Submit a small import periodically; returns the number of imports."""
    count = 0
    while time.monotonic() < until:
        file = folder / f"prompts-{count}.jsonl"
        file.write_text("".join(json.dumps({"prompt": f"{count}: {n}"}) + "\n" for n in range(12)))
        await asyncio.to_thread(
            submit, ImportPrompts(path=str(file)), name=f"prompts-{count}", settings=target.settings
        )
        count += 1
        await asyncio.sleep(min(IMPORT_SECONDS, max(0.0, until - time.monotonic())))
    return count


async def sampler(programs: dict[str, psutil.Process], until: float) -> dict[str, list[tuple[float, float]]]:
    """(seconds, MB) samples of each process."""
    samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
    began = time.monotonic()
    while time.monotonic() < until:
        for name, process in programs.items():
            samples[name].append((time.monotonic() - began, process.memory_info().rss / 2**20))
        await asyncio.sleep(min(SAMPLE_SECONDS, max(0.05, until - time.monotonic())))
    return samples


def memory(samples: dict[str, list[tuple[float, float]]]) -> dict[str, dict[str, float]]:
    """MB at the start, after warm-up and at the end, and the slope since warm-up in MB per minute."""
    figures = {}
    for name, taken in samples.items():
        late = taken[int(len(taken) * WARM_UP) :]
        few = max(1, len(late) // 10)
        slope = statistics.linear_regression(*zip(*late, strict=True)).slope if len(late) > 2 else 0.0
        figures[name] = {
            "start_mb": round(taken[0][1], 1),
            "warm_mb": round(statistics.median(mb for _, mb in late[:few]), 1),
            "end_mb": round(statistics.median(mb for _, mb in late[-few:]), 1),
            "mb_per_minute": round(slope * 60, 3),
        }
    return figures


async def browser(target: LoadTarget, path: str | None, until: float) -> int:
    """A Chromium that opens pages and selects a job; returns the number of rounds."""
    from playwright.async_api import async_playwright

    from tests.tools.browser import launch_options

    rounds = 0
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(**launch_options(path or ""))
        page = await chromium.new_page()
        page.on("pageerror", lambda error: target.failed.append(f"script: {error}"))
        while time.monotonic() < until:
            for address in PAGES:
                await _timed(target, f"chromium open {address}", _visit(page, target.url + address))
                await asyncio.sleep(LOOK_SECONDS)
            await _visit(page, target.url + "/jobs")
            if await page.locator("#jobs-table a[data-pick]").count():
                await _timed(target, "chromium pick a job", _pick(page))
                await _timed(target, "chromium back to the list", _back(page))
            rounds += 1
        await chromium.close()
    return rounds


async def _timed(target: LoadTarget, action: str, done: Awaitable[None]) -> None:
    began = time.perf_counter()
    await done
    target.note(action, time.perf_counter() - began)


async def _visit(page: Any, url: str) -> None:
    await page.goto(url)
    await page.locator(".sp-strip").first.wait_for()


async def _pick(page: Any) -> None:
    await page.locator("#jobs-table a[data-pick]").first.click()
    await page.locator("#job-head [data-state]").first.wait_for()


async def _back(page: Any) -> None:
    await page.locator("#jobs-back a").click()
    await page.locator("#jobs-listing").wait_for()


async def busy(target: LoadTarget, options: argparse.Namespace, folder: Path, chromium: str | None) -> dict[str, Any]:
    """Part 2: the workbench under load."""
    streams, programs = Streams(), processes(target.settings)
    before, began = cpu_seconds(programs), time.monotonic()
    until = began + options.seconds
    async with _clients(target, options.clients + options.streams) as connections:
        visits = [visitor(target, connections[n], n, until) for n in range(options.clients)]
        reads = [streams.read(target, connections[options.clients + n], n, until) for n in range(options.streams)]
        browsing = [browser(target, chromium, until)] if options.browser else []
        counted = await asyncio.gather(
            sampler(programs, until), importer(target, folder, until), *browsing, *visits, *reads
        )
    passed = time.monotonic() - began
    again = processes(target.settings)
    restarted = [name for name in programs if again.get(name) != programs[name]]
    return {
        "seconds": round(passed),
        "clients": options.clients,
        "streams": {"at_once": options.streams, **vars(streams)},
        "imports": counted[1],
        "chromium_rounds": counted[2] if options.browser else 0,
        "cpu_share": shares(before, cpu_seconds(programs), passed),
        "memory": memory(counted[0]),
        "restarted": restarted,
    }


def queue_jobs(settings: Settings, count: int) -> None:
    """Create queued jobs. Their message counts as just sent, so that no worker starts them."""
    with db.writing(settings) as session:
        for number in range(count):
            job = jobs.create(session, kind="train", queue="gpu", request={}, name=f"queued {number}")
            job.published_at = now() + timedelta(days=1)


async def long_queue(target: LoadTarget, count: int, times: int) -> dict[str, Any]:
    """Part 3: time to open each page, and to filter the Jobs page, with `count` queued jobs."""
    queue_jobs(target.settings, count)
    taken: dict[str, list[float]] = defaultdict(list)
    async with _clients(target, 1) as (client,):
        for _ in range(times):
            for path in PAGES:
                page = PageClient(client, path)
                taken[path].append(await page.open())
                if path == "/jobs":
                    taken["/jobs, Active"].append(await page.act("jobs-filter", "change", "Active"))
    return {"jobs": count, "open_ms": milliseconds(taken)}


def milliseconds(taken: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {name: spread((1000 * s for s in seconds), 1) for name, seconds in sorted(taken.items())}


def is_action(name: str) -> bool:
    """Whether visitors wait for this action: opening and clicking, not polls or Chromium rendering."""
    return not name.startswith(("poll", "chromium"))


async def measure(options: argparse.Namespace, folder: Path, chromium: str | None) -> dict[str, Any]:
    """Run all three parts."""
    load = [round(os.getloadavg()[0], 1)]
    with workbench(folder) as target:
        polling = await idle(target, options.clients, options.idle_seconds, SETTLE_SECONDS)
        target.taken.clear()
        under = await busy(target, options, folder, chromium)
        actions = [seconds for name, taken in target.taken.items() if is_action(name) for seconds in taken]
        under["actions_ms"] = milliseconds(target.taken)
        under["action_p95_ms"] = spread((1000 * s for s in actions), 1).get("p95", 0.0)
        queue = await long_queue(target, options.jobs, options.times)
        failed = target.failed
    load.append(round(os.getloadavg()[0], 1))
    return {
        "date": date.today().isoformat(),
        "machine": machine(),
        "load": load,
        "polling": polling,
        "busy": under,
        "queue": queue,
        "failed": failed[:5],
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50, help=f"open pages, at most {MOST_CLIENTS}")
    parser.add_argument("--streams", type=int, default=8, help="answers read at once")
    parser.add_argument("--seconds", type=float, default=1200.0, help=f"of the second part, at most {MOST_SECONDS}")
    parser.add_argument("--idle-seconds", type=float, default=60.0, help="of the first part")
    parser.add_argument("--jobs", type=int, default=200, help="queued jobs of the third part")
    parser.add_argument("--times", type=int, default=5, help="how often each page is opened in the third part")
    parser.add_argument("--no-browser", dest="browser", action="store_false", help="without the Chromium")
    parser.add_argument("--json", type=Path, help="write the result here too")
    options = parser.parse_args(arguments)
    if options.clients > MOST_CLIENTS or options.seconds > MOST_SECONDS:
        parser.error(f"at most {MOST_CLIENTS} clients and {MOST_SECONDS} s: this is a measurement, not an attack")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    chromium = None
    if options.browser:
        from tests.tools.browser import HELP, find

        if (chromium := find()) is None:
            raise SystemExit(HELP)
    folder = Path(tempfile.mkdtemp(prefix="load-"))
    try:
        result = asyncio.run(measure(options, folder, chromium))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
