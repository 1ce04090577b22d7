"""What pages cost with a long queue: `python -m benchmarks.pages [--jobs 200] [--pages 50] [--seconds 30]`.

A web process of its own, a home with that many waiting jobs, one Chromium. Printed are what opening each page takes the
server (the document and what it draws from rows), and the share of one core that so many idle pages
cost: each asks `/api/changes` as app/static/changes.js does.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx
import psutil
from playwright.sync_api import Page, Request, sync_playwright

from app.views.shell import NAV
from speculoos.settings import Settings, load
from tests.tools.browser import HELP, find, launch_options
from tests.tools.ports import free_ports
from tracking import db, jobs

TIMES = 8
FIRST, GROWTH = 1.0, 1.5
"""Seconds of the script's first pause, and by how much each is longer than the one before."""


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
        settings = prepare(Path(folder), args.jobs)
        web = start(settings)
        try:
            opened = open_pages(settings, browser, web.pid)
            idle = asyncio.run(idle_share(settings, web.pid, args.pages, args.seconds))
        finally:
            web.terminate()
            web.wait()
    figures = {"jobs": args.jobs, "open": opened, "idle_pages": args.pages, "idle_share_of_a_core": idle}
    print(json.dumps({**figures, "load_average": os.getloadavg()[0]}, indent=1))


def prepare(folder: Path, count: int) -> Settings:
    """A home with `count` waiting jobs."""
    settings = load({"SPECULOOS_HOME": str(folder), "SPECULOOS_PORT": str(free_ports(1)[0])})
    db.upgrade(settings)
    with db.writing(settings) as session:
        for number in range(count):
            jobs.create(session, kind="train", queue="gpu", request={"method": "medusa"}, name=f"Train heads {number}")
    return settings


def start(settings: Settings) -> subprocess.Popen[bytes]:
    """The web process, once it answers."""
    own = {"SPECULOOS_HOME": str(settings.home), "SPECULOOS_PORT": str(settings.port)}
    web = subprocess.Popen([sys.executable, "-m", "app.main"], env={**os.environ, **own})
    with httpx.Client(base_url=address(settings), trust_env=False) as client:
        while web.poll() is None:
            try:
                client.get("/healthz")
                return web
            except httpx.TransportError:
                time.sleep(0.2)
    sys.exit("the web process ended")


def open_pages(settings: Settings, browser: str, pid: int) -> dict[str, dict[str, float]]:
    """Milliseconds for opening each page by its path: until the server had answered (p95), and of its processor (mean,
    which other work on the machine changes little)."""
    pages, web = {}, psutil.Process(pid)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(**launch_options(browser))
        page = chromium.new_page()
        for _, path in NAV:
            before = web.cpu_times()
            answered = p95([open_once(page, address(settings) + path) for _ in range(TIMES)])
            cpu = seconds_between(before, web.cpu_times()) * 1000 / TIMES
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


async def idle_share(settings: Settings, pid: int, count: int, seconds: float) -> float:
    """The share of one core that the web process uses while `count` pages are open and nothing happens."""
    web, until = psutil.Process(pid), time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=address(settings), trust_env=False, timeout=30) as client:
        before, began = web.cpu_times(), time.monotonic()
        await asyncio.gather(*(idle_page(client, until, number / count) for number in range(count)))
        after, took = web.cpu_times(), time.monotonic() - began
    return round(seconds_between(before, after) / took, 3)


async def idle_page(client: httpx.AsyncClient, until: float, late: float) -> None:
    """Ask as the script does from the moment the page opens, which is `late` seconds after the first one's."""
    await asyncio.sleep(late)
    pause, tag = FIRST, ""
    while time.monotonic() < until:
        answer = (await client.get("/api/changes", params={"page": "jobs", "id": "", "strip": tag})).json()
        tag = answer.get("strip", {}).get("tag", tag)
        pause = min(pause * GROWTH, answer["wait"])
        await asyncio.sleep(pause)


def seconds_between(before: Any, after: Any) -> float:
    """Seconds of processor time."""
    return after.user + after.system - before.user - before.system


def address(settings: Settings) -> str:
    return f"http://127.0.0.1:{settings.port}"


def p95(values: list[float]) -> float:
    return round(quantiles(values, n=20, method="inclusive")[-1], 1)


if __name__ == "__main__":
    main()
