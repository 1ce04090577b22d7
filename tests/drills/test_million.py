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
    with most_memory(up) as most:
        imported = submit(ImportPrompts(path=str(file)), settings=up.settings)
        during = opened(up, ["/", "/data", "/runs", f"/runs?id={imported.id}"])
        import_seconds = seconds_to(up, imported, lambda job: job.state == "SUCCEEDED")
        source_id = imported.request["dataset_id"]
        generation = submit(GenerateData(source_id=source_id, endpoint="away"), settings=up.settings)
        divide_seconds = seconds_to(up, generation, lambda job: job.shards > 0)
        paths = ["/", "/data", f"/data?id={source_id}", "/runs", f"/runs?id={generation.id}"]
        after = opened(up, paths)
    with db.reading(up.settings) as session:
        tally, whole = shards.tally(session, generation.id), jobs.get(session, generation.id)
    assert (whole.shards, whole.total, tally.total) == (200, ROWS, 200)
    pages = {
        f"{path.partition('=')[0]}{when}": taken
        for when, found in (("", after), (" importing", during))
        for path, taken in found.items()
    }
    figures.record(
        **{"rows": ROWS, "shards": whole.shards, "import_seconds": import_seconds, "divide_seconds": divide_seconds},
        **{"megabytes_at_most": {name: round(held / 1e6) for name, held in most.items()}, "pages_ms": pages},
    )
    assert max(most.values()) < MOST_BYTES, most
    assert all(taken["median"] < MOST_MS for taken in pages.values()), pages


def seconds_to(up: Up, job: Job, claim) -> float:  # noqa: ANN001
    began = time.monotonic()

    def there() -> bool:
        with db.reading(up.settings) as session:
            found = jobs.get(session, job.id)
        assert found.state not in ("FAILED", "CANCELLED"), found.error
        return claim(found)

    wait_until(there, 900, "the job", lambda: up.output)
    return round(time.monotonic() - began, 1)


def opened(up: Up, paths: list[str]) -> dict[str, dict[str, float]]:
    """{path: milliseconds to open it with all it shows}."""

    async def look() -> dict[str, list[float]]:
        taken = defaultdict(list)
        async with httpx.AsyncClient(base_url=up.url, timeout=60) as client:
            for path in paths:
                await PageClient(client, path).open()  # the first visit of all makes what later ones find
            for _ in range(TIMES):
                for path in paths:
                    taken[path].append(1000 * await PageClient(client, path).open())
        return taken

    return {path: spread(taken, 1) for path, taken in asyncio.run(look()).items()}


@contextmanager
def most_memory(up: Up) -> Iterator[dict[str, int]]:
    """Bytes that each kind of process held at most while the block lasted."""
    most: dict[str, int] = defaultdict(int)

    def look() -> None:
        for process in psutil.Process(up.process.pid).children(recursive=True):
            try:
                words = [word for word in process.cmdline() if "." in word and "/" not in word]
                name = words[0] if words else process.name()
                most[name] = max(most[name], process.memory_info().rss)
            except psutil.Error:
                continue

    with watched(look, 0.2):
        yield most
