"""A million prompts: imported, divided into shards and listed, while pages are opened."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.tools.figures import Figures, spread
from tests.tools.page_client import PageClient
from tests.tools.running import Up
from tests.tools.watching import watched
from tests.workers.conftest import wait_until
from tracking import db, jobs, shards
from tracking.tables import Job
from workers.jobs.requests import GenerateData, ImportPrompts
from workers.jobs.submit import submit

pytestmark = [pytest.mark.drill, pytest.mark.timeout(1800)]
ROWS, MOST_BYTES, MOST_MS = 1_000_000, 1 << 30, 300
ENDPOINT = '[endpoints.away]\nurl = ["http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1"]\nmodel = "m"\nconcurrency = 1\n'
"""Two servers that do not answer: what is looked at is the shards that wait."""
TIMES = 5


def test_a_million_prompts(up: Up, tmp_path: Path, figures: Figures) -> None:
    file = tmp_path / "million.jsonl"
    with file.open("w") as out:
        out.writelines(json.dumps({"prompt": f"What is {n} plus {n % 97}, and why?"}) + "\n" for n in range(ROWS))
    (up.home / "settings.toml").write_text(ENDPOINT)
    up.start()
    with peak_memory(up) as peaks:
        imported = submit(ImportPrompts(path=str(file)), settings=up.settings)
        during = opened(up, ["/", "/data", "/runs", f"/runs?id={imported.id}"])
        import_seconds = seconds_to(up, imported, lambda job: job.state == "SUCCEEDED")
        source_id = imported.request["dataset_id"]
        generation = submit(GenerateData(source_id=source_id, endpoint="away"), settings=up.settings)
        divide_seconds = seconds_to(up, generation, lambda job: job.shards > 0)
        paths = ["/", "/data", f"/data?id={source_id}", "/runs", f"/runs?id={generation.id}"]
        after = opened(up, paths)
    with db.reading(up.settings) as session:
        tally, job = shards.tally(session, generation.id), jobs.get(session, generation.id)
    assert (job.shards, job.total, tally.total) == (200, ROWS, 200)
    pages = {
        f"{path.partition('=')[0]}{when}": taken
        for when, times in (("", after), (" importing", during))
        for path, taken in times.items()
    }
    figures.record(
        **{"rows": ROWS, "shards": job.shards, "import_seconds": import_seconds, "divide_seconds": divide_seconds},
        **{"megabytes_at_most": {name: round(peak / 1e6) for name, peak in peaks.items()}, "pages_ms": pages},
    )
    assert max(peaks.values()) < MOST_BYTES, peaks
    assert all(taken["median"] < MOST_MS for taken in pages.values()), pages


def seconds_to(up: Up, job: Job, condition) -> float:  # noqa: ANN001
    began = time.monotonic()

    def is_reached() -> bool:
        with db.reading(up.settings) as session:
            current = jobs.get(session, job.id)
        assert current.state not in ("FAILED", "CANCELLED"), current.error
        return condition(current)

    wait_until(is_reached, 900, "the job", lambda: up.output)
    return round(time.monotonic() - began, 1)


def opened(up: Up, paths: list[str]) -> dict[str, dict[str, float]]:
    """{path: milliseconds to open the page with all its contents}."""

    async def measure() -> dict[str, list[float]]:
        taken = defaultdict(list)
        async with httpx.AsyncClient(base_url=up.url, timeout=60) as client:
            for path in paths:
                await PageClient(client, path).open()  # the first visit fills caches
            for _ in range(TIMES):
                for path in paths:
                    taken[path].append(1000 * await PageClient(client, path).open())
        return taken

    return {path: spread(taken, 1) for path, taken in asyncio.run(measure()).items()}


@contextmanager
def peak_memory(up: Up) -> Iterator[dict[str, int]]:
    """The peak memory in bytes of each kind of process during the block."""
    peaks: dict[str, int] = defaultdict(int)

    def measure() -> None:
        for process in psutil.Process(up.process.pid).children(recursive=True):
            try:
                modules = [argument for argument in process.cmdline() if "." in argument and "/" not in argument]
                name = modules[0] if modules else process.name()
                peaks[name] = max(peaks[name], process.memory_info().rss)
            except psutil.Error:
                continue

    with watched(measure, 0.2):
        yield peaks
