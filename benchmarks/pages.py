"""What pages cost with a long queue: `python -m benchmarks.pages [--jobs 200] [--pages 50] [--seconds 30]`.

A web process of its own, a home with that many waiting jobs, one Chromium. Printed are what opening each page takes the
server (the document and what it draws from rows), and the share of one core that so many idle pages
cost: each asks `/api/changes` as app/static/changes.js does.
"""

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles

import httpx
import psutil
from playwright.sync_api import Page, Request, sync_playwright

from app.views.shell import NAV
from benchmarks import page_client
from tests.browser.workbench import make_workbench
from tests.tools.browser import HELP, find, launch_options
from tracking import db, jobs

TIMES = 8


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description="What pages cost with a long queue.")
    parser.add_argument("--jobs", type=int, default=200, help="waiting jobs")
    parser.add_argument("--pages", type=int, default=50, help="idle pages")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long they idle")
    args = parser.parse_args()
    browser = find()
    if browser is None:
        sys.exit(HELP)
    with tempfile.TemporaryDirectory() as folder:
        bench = make_workbench(Path(folder))
        with db.writing(bench.settings) as session:
            for number in range(args.jobs):
                request, name = {"method": "medusa"}, f"Train heads {number}"
                jobs.create(session, kind="train", queue="gpu", request=request, name=name)
        try:
            bench.start("web")
            web = psutil.Process(bench.processes["web"].pid)
            opened = open_pages(bench.url, browser, web)
            idle = asyncio.run(idle_share(bench.url, web, args.pages, args.seconds))
        finally:
            bench.stop()
            shutil.rmtree(bench.settings.run_dir, ignore_errors=True)
    figures = {"jobs": args.jobs, "open": opened, "idle_pages": args.pages, "idle_share_of_a_core": idle}
    print(json.dumps({**figures, "load_average": os.getloadavg()[0]}, indent=1))


def open_pages(url: str, browser: str, web: psutil.Process) -> dict[str, dict[str, float]]:
    """Milliseconds for opening each page by its path: until the server had answered (p95), and of its processor (mean,
    which other work on the machine changes little)."""
    pages = {}
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(**launch_options(browser))
        page = chromium.new_page()
        for _, path in NAV:
            before = cpu_seconds(web)
            answered = p95([open_once(page, url + path) for _ in range(TIMES)])
            cpu = (cpu_seconds(web) - before) * 1000 / TIMES
            pages[path] = {"answered_p95": answered, "processor": round(cpu, 1)}
        chromium.close()
    return pages


def open_once(page: Page, url: str) -> float:
    """Milliseconds that the document and the page's own events took to be answered, one after the other."""
    answered: list[Request] = []

    def note(request: Request) -> None:
        answered.append(request)

    page.on("requestfinished", note)
    page.goto(url)
    page.wait_for_load_state("networkidle")
    page.remove_listener("requestfinished", note)
    ours = [r for r in answered if r.url == url or "/gradio_api/run/" in r.url]
    return sum(r.timing["responseEnd"] - r.timing["requestStart"] for r in ours)


async def idle_share(url: str, web: psutil.Process, count: int, seconds: float) -> float:
    """The share of one core that the web process uses while `count` pages are open and nothing happens."""
    until = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
        before, began = cpu_seconds(web), time.monotonic()
        await asyncio.gather(*(idle_page(client, until, number / count) for number in range(count)))
        return round((cpu_seconds(web) - before) / (time.monotonic() - began), 3)


async def idle_page(client: httpx.AsyncClient, until: float, late: float) -> None:
    """Ask as the script does from the moment the page opens, which is `late` seconds after the first one's."""
    await asyncio.sleep(late)
    script = page_client.Changes(page_client.Page(client, "/jobs"), {"page": "jobs"}, -1)
    await script.look()
    await script.keep_asking(until)


def cpu_seconds(process: psutil.Process) -> float:
    """Of processor time so far."""
    return sum(process.cpu_times()[:2])


def p95(values: list[float]) -> float:
    return round(quantiles(values, n=20, method="inclusive")[-1], 1)


if __name__ == "__main__":
    main()
