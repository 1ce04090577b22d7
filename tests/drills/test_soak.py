"""Hundreds of questions to a real workbench with the starter and its draft, sent as by the Playground: memory, open
files and threads do not grow, and the idle workbench uses almost no CPU afterwards."""

import asyncio
import contextlib
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import httpx
import psutil
import pytest

from models.starter import starter_path
from tests.tools.figures import Figures, spread
from tests.tools.page_client import PageClient, follow
from tests.tools.page_load import MEASURED, SETTLE_SECONDS
from tests.tools.running import Up

TURNS = int(os.environ.get("DRILLS_TURNS", "300"))
CHAT = 10
"""Turns of one chat."""
WARM = max(CHAT, TURNS // 60 * CHAT)
"""Turns after which the first figures are taken: caches have been filled by then."""
TOKENS = 8
STEADY = TURNS // 2
"""Turns after which memory must be flat: until then prompts have lengths that are new, and the inference server takes
memory for new lengths (why, and up to where, has not been found out)."""
GROWTH_MB = 7.0
"""How much more memory a part may have after 100 more turns. One that keeps 100 KB of each has 9.8 MB more; one step by
6 MB, as were seen, looks like 6 at most."""
IDLE_SECONDS, IDLE_SHARE = 60.0, 0.05
"""How long nobody asks, and the share of one core that all processes together may take then."""
QUESTIONS = (
    "What is photosynthesis?",
    "Why is the sky blue?",
    "Write a Python function that checks whether a number is even.",
    "What are five tips for sleeping better?",
    "How does a bicycle stay upright?",
)
MEMORY, COUNTED = ("rss", "uss"), ("files", "threads")
Usage = dict[str, Counter[str]]
"""Bytes of memory, open files and threads of each part, with the processes it started."""


@pytest.mark.drill
@pytest.mark.timeout(2400)
def test_hundreds_of_answers_leave_nothing_behind(up: Up, figures: Figures) -> None:
    up.environment["SPECULOOS_STARTER"] = str(starter_path())
    up.start()
    before, seconds, tokens, samples = {name: up.pid(name) for name in MEASURED}, [], 0, {}
    for turns in range(CHAT, TURNS + 1, CHAT):
        turn_seconds, turn_tokens = asyncio.run(talk(up, turns // CHAT))
        seconds, tokens = seconds + turn_seconds, tokens + turn_tokens
        if turns >= STEADY:
            samples[turns] = measure_usage(up)
        if turns == WARM:
            warm = settled(up, lambda _: False)
    end = settled(up, lambda now: not grown_counts(warm, now))
    idle, polled = asyncio.run(at_rest(up)), asyncio.run(at_rest(up, "/runs"))
    growth = slopes(samples)
    figures.record(
        turns=TURNS,
        tokens=tokens,
        seconds_a_turn=spread(seconds),
        **{f"{kind}_mb": megabytes(warm[kind], end[kind]) for kind in MEMORY},
        **{f"{kind}_mb_more_each_100_turns_at_last": growth[kind] for kind in MEMORY},
        **{kind: {part: f"{warm[kind][part]} to {end[kind][part]}" for part in end[kind]} for kind in COUNTED},
        cores_used_idle=idle,
        cores_used_with_a_jobs_page=polled,
    )
    assert {name: up.pid(name) for name in MEASURED} == before, "a part was started anew"
    assert "Traceback" not in up.output
    broken = [
        *grown_counts(warm, end),
        *grown_memory(growth),
        *([f"idle: {idle:.1%} of a core"] if idle >= IDLE_SHARE else []),
    ]
    assert not broken, "; ".join(broken)


def test_what_keeps_100_kb_of_every_turn_is_found() -> None:
    """A leak of 100 KB per turn is found beside one step of 6 MB, which alone is no leak."""

    def usage(turns: int, leak: int) -> Usage:
        step = 6 * 2**20 if turns > 220 else 0
        return {kind: Counter(web=300 * 2**20 + step, inference=2**30 + turns * leak) for kind in MEMORY}

    def findings(leak: int) -> list[str]:
        return grown_memory(slopes({turns: usage(turns, leak) for turns in range(150, 301, 10)}))

    assert not findings(0)
    assert [finding.partition(":")[0] for finding in findings(100 * 1024)] == ["rss of inference", "uss of inference"]
    assert grown_counts({"files": Counter(web=9)}, {"files": Counter(web=10)}) == ["files of web: 9, then 10"]


async def talk(up: Up, number: int) -> tuple[list[float], int]:
    """Hold one chat in a new browser; returns the seconds of each turn and the tokens of all answers."""
    seconds, tokens = [], 0
    async with browser(up) as client:
        page = PageClient(client, "/playground")
        await page.open()
        page.values[page.find("max-tokens")] = TOKENS
        for turn in range(CHAT):
            began = time.monotonic()
            page.values[page.find("prompt")] = f"{QUESTIONS[(number + turn) % len(QUESTIONS)]} ({number}.{turn})"
            await page.act("send", "click")
            assert not page.value("problem"), page.value("problem")
            turns = (await client.get(f"/api/chats/{page.value('chat-id')}?turn=")).raise_for_status().json()["turns"]
            assert len(turns) == turn + 1
            answer = await follow(client, turns[-1]["id"])
            assert answer.end["state"] == "SUCCEEDED" and "@" in answer.end["model"], answer.end
            assert 0 < len(answer.token_ids) <= TOKENS
            (await client.get(f"/api/runs/{turns[-1]['id']}/markdown")).raise_for_status()
            await page.changes.look()
            tokens += len(answer.token_ids)
            seconds.append(time.monotonic() - began)
        (await client.get("/api/chats?find=&before=")).raise_for_status()
    return seconds, tokens


def browser(up: Up) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=up.url, timeout=60, trust_env=False)


def parts(up: Up) -> Iterator[tuple[str, psutil.Process]]:
    """Every process of the home with the part that it belongs to, by its ancestors."""
    names = {up.pid(name): name for name in MEASURED} | {up.process.pid: "up"}
    top = psutil.Process(up.process.pid)
    for process in [top, *top.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            yield next(names[one.pid] for one in [process, *process.parents()] if one.pid in names), process


def measure_usage(up: Up) -> Usage:
    usage: Usage = defaultdict(Counter)
    for part, process in parts(up):
        with contextlib.suppress(psutil.Error):
            memory = process.memory_full_info()
            counts = (memory.rss, memory.uss, process.num_fds(), process.num_threads())
            for kind, count in zip((*MEMORY, *COUNTED), counts, strict=True):
                usage[kind][part] += count
    return usage


def settled(up: Up, condition: Callable[[Usage], bool]) -> Usage:
    """Measure until the condition holds or the time for caches to be freed is over; returns the last measurement."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not condition(now := measure_usage(up)) and time.monotonic() < deadline:
        time.sleep(1)
    return now


def megabytes(warm: Counter[str], end: Counter[str]) -> dict[str, str]:
    return {part: f"{warm[part] / 2**20:.1f} to {end[part] / 2**20:.1f}" for part in end}


def slopes(samples: dict[int, Usage]) -> dict[str, dict[str, float]]:
    """MB more each 100 turns, by a linear regression over all samples: one step is no leak."""
    hundreds, last = [turns / 100 for turns in samples], list(samples.values())[-1]

    def slope(kind: str, part: str) -> float:
        megabytes_held = [sample[kind][part] / 2**20 for sample in samples.values()]
        return round(statistics.linear_regression(hundreds, megabytes_held).slope, 2)

    return {kind: {part: slope(kind, part) for part in last[kind]} for kind in MEMORY}


def grown_memory(growth: dict[str, dict[str, float]]) -> list[str]:
    return [
        f"{kind} of {part}: {rise} MB more each 100 turns"
        for kind, rises in growth.items()
        for part, rise in rises.items()
        if rise > GROWTH_MB
    ]


def grown_counts(warm: Usage, end: Usage) -> list[str]:
    """The parts that have more open files or threads than before."""
    return [
        f"{kind} of {part}: {warm[kind][part]}, then {count}"
        for kind in COUNTED
        for part, count in end.get(kind, {}).items()
        if count > warm[kind][part]
    ]


async def at_rest(up: Up, path: str = "") -> float:
    """Cores that all processes use together while idle, with that page open or none."""
    async with browser(up) as client:
        wait_until = _sleep_until
        if path:
            page = PageClient(client, path)
            await page.open()
            wait_until = page.stay
        await wait_until(time.monotonic() + SETTLE_SECONDS)
        before, began = cpu_seconds(up), time.monotonic()
        await wait_until(began + IDLE_SECONDS)
        return round((cpu_seconds(up) - before) / (time.monotonic() - began), 4)


async def _sleep_until(until: float) -> None:
    await asyncio.sleep(until - time.monotonic())


def cpu_seconds(up: Up) -> float:
    """CPU seconds of all processes. Ended ones count with the parent that waited for them."""
    taken = 0.0
    for _, process in parts(up):
        with contextlib.suppress(psutil.Error):
            taken += sum(process.cpu_times()[:4])
    return taken
