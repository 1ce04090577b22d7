"""Hundreds of questions to a real workbench with the starter and its draft, asked as the Playground asks them: memory,
open files and threads do not grow, and afterwards a workbench that nobody asks leaves the processor alone."""

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
Held = dict[str, Counter[str]]
"""Bytes of memory, open files and threads of each part, with the processes it started."""


@pytest.mark.drill
@pytest.mark.timeout(2400)
def test_hundreds_of_answers_leave_nothing_behind(up: Up, figures: Figures) -> None:
    up.environment["SPECULOOS_STARTER"] = str(starter_path())
    up.start()
    before, seconds, tokens, looks = {name: up.pid(name) for name in MEASURED}, [], 0, {}
    for turns in range(CHAT, TURNS + 1, CHAT):
        taken, said = asyncio.run(talk(up, turns // CHAT))
        seconds, tokens = seconds + taken, tokens + said
        if turns >= STEADY:
            looks[turns] = look(up)
        if turns == WARM:
            warm = settled(up, lambda _: False)
    end = settled(up, lambda now: not more(warm, now))
    idle, polled = asyncio.run(at_rest(up)), asyncio.run(at_rest(up, "/runs"))
    growth = slopes(looks)
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
    broken = [*more(warm, end), *grown(growth), *([f"idle: {idle:.1%} of a core"] if idle >= IDLE_SHARE else [])]
    assert not broken, "; ".join(broken)


def test_what_keeps_100_kb_of_every_turn_is_found() -> None:
    """Beside one step of 6 MB, which alone is none."""

    def held(turns: int, kept: int) -> Held:
        step = 6 * 2**20 if turns > 220 else 0
        return {kind: Counter(web=300 * 2**20 + step, inference=2**30 + turns * kept) for kind in MEMORY}

    def judged(kept: int) -> list[str]:
        return grown(slopes({turns: held(turns, kept) for turns in range(150, 301, 10)}))

    assert not judged(0)
    assert [words.partition(":")[0] for words in judged(100 * 1024)] == ["rss of inference", "uss of inference"]
    assert more({"files": Counter(web=9)}, {"files": Counter(web=10)}) == ["files of web: 9, then 10"]


async def talk(up: Up, number: int) -> tuple[list[float], int]:
    """One chat in a browser of its own: seconds of each turn, and tokens of all answers."""
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
            way = (await client.get(f"/api/chats/{page.value('chat-id')}?turn=")).raise_for_status().json()["turns"]
            assert len(way) == turn + 1
            answer = await follow(client, way[-1]["id"])
            assert answer.end["state"] == "SUCCEEDED" and "@" in answer.end["model"], answer.end
            assert 0 < len(answer.token_ids) <= TOKENS
            (await client.get(f"/api/runs/{way[-1]['id']}/markdown")).raise_for_status()
            await page.changes.look()
            tokens += len(answer.token_ids)
            seconds.append(time.monotonic() - began)
        (await client.get("/api/chats?find=&before=")).raise_for_status()
    return seconds, tokens


def browser(up: Up) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=up.url, timeout=60, trust_env=False)


def parts(up: Up) -> Iterator[tuple[str, psutil.Process]]:
    """Every process of the home with the part it belongs to: what a part starts is its own."""
    names = {up.pid(name): name for name in MEASURED} | {up.process.pid: "up"}
    top = psutil.Process(up.process.pid)
    for process in [top, *top.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            yield next(names[one.pid] for one in [process, *process.parents()] if one.pid in names), process


def look(up: Up) -> Held:
    found: Held = defaultdict(Counter)
    for part, process in parts(up):
        with contextlib.suppress(psutil.Error):
            memory = process.memory_full_info()
            held = (memory.rss, memory.uss, process.num_fds(), process.num_threads())
            for kind, count in zip((*MEMORY, *COUNTED), held, strict=True):
                found[kind][part] += count
    return found


def settled(up: Up, claim: Callable[[Held], bool]) -> Held:
    """The last look, once the claim holds or what is kept a while has been let go."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not claim(now := look(up)) and time.monotonic() < deadline:
        time.sleep(1)
    return now


def megabytes(warm: Counter[str], end: Counter[str]) -> dict[str, str]:
    return {part: f"{warm[part] / 2**20:.1f} to {end[part] / 2**20:.1f}" for part in end}


def slopes(looks: dict[int, Held]) -> dict[str, dict[str, float]]:
    """MB more each 100 turns, by the line through all looks: one step is no leak."""
    hundreds, last = [turns / 100 for turns in looks], list(looks.values())[-1]

    def slope(kind: str, part: str) -> float:
        held = [one[kind][part] / 2**20 for one in looks.values()]
        return round(statistics.linear_regression(hundreds, held).slope, 2)

    return {kind: {part: slope(kind, part) for part in last[kind]} for kind in MEMORY}


def grown(growth: dict[str, dict[str, float]]) -> list[str]:
    return [
        f"{kind} of {part}: {more} MB more each 100 turns"
        for kind, found in growth.items()
        for part, more in found.items()
        if more > GROWTH_MB
    ]


def more(warm: Held, end: Held) -> list[str]:
    """What has more open files or threads than it had."""
    return [
        f"{kind} of {part}: {warm[kind][part]}, then {count}"
        for kind in COUNTED
        for part, count in end.get(kind, {}).items()
        if count > warm[kind][part]
    ]


async def at_rest(up: Up, path: str = "") -> float:
    """Cores that all processes together use while nobody asks, with that page open or none."""
    async with browser(up) as client:
        stay = _nobody
        if path:
            page = PageClient(client, path)
            await page.open()
            stay = page.stay
        await stay(time.monotonic() + SETTLE_SECONDS)
        before, began = cpu_seconds(up), time.monotonic()
        await stay(began + IDLE_SECONDS)
        return round((cpu_seconds(up) - before) / (time.monotonic() - began), 4)


async def _nobody(until: float) -> None:
    await asyncio.sleep(until - time.monotonic())


def cpu_seconds(up: Up) -> float:
    """Of all processes; those that have ended count with who waited for them."""
    taken = 0.0
    for _, process in parts(up):
        with contextlib.suppress(psutil.Error):
            taken += sum(process.cpu_times()[:4])
    return taken
