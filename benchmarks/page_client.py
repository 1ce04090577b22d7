"""A page of the workbench as a browser sees it, without drawing it: opened, polled by its own timers, clicked.

Follows Gradio's own client: the page brings its configuration (components, events), what it shows is kept as the
components' values, and every event is one POST to `run/predict` with the values of its inputs. A page is kept fresh by
static/changes.js, whose questions and pauses `Changes` imitates, and by timers of Gradio's where it has some.
`follow` reads a run's event stream as `EventSource` does.
"""

import asyncio
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

CONFIG = re.compile(r"window\.gradio_config = (\{.*?\});\s*</script>", re.DOTALL)
AGAIN_SECONDS = 1.0
"""Pause before a lost event stream is asked for again; browsers take a few seconds, which only makes a test longer."""
FIRST_SECONDS, GROWTH = 1.0, 1.5
"""Pauses of static/changes.js: the first one, and how much longer the next one is while nothing changes."""
DRAWN = " # "
"""app/widgets/list_page.py: what stands between a signature and what was drawn for it."""
Noted = Callable[[str, float], None]


@dataclass
class PageClient:
    """One open page. `noted(action, seconds)` hears how long each opening, poll and click took."""

    client: httpx.AsyncClient
    path: str
    noted: Noted = lambda action, seconds: None
    session: str = field(default_factory=lambda: secrets.token_hex(6))
    values: dict[int, Any] = field(default_factory=dict)
    props: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    changes: "Changes" = field(init=False)

    async def open(self) -> float:
        """The document, the events it loads itself with and the strip; seconds until all are there."""
        began = time.perf_counter()
        answer = await self.client.get(self.path)
        answer.raise_for_status()
        self._read(json.loads(CONFIG.search(answer.text).group(1)))
        self.changes = Changes.of(self)
        await asyncio.gather(*(self.run(event) for event in self._on("load")), self.changes.look())
        taken = time.perf_counter() - began
        self.noted(f"open {self.path.partition('?')[0]}", taken)
        return taken

    async def stay(self, until: float) -> None:
        """Keep the page open to this moment of `time.monotonic`, its timers ticking."""
        ticks = [self._tick(event, until) for event in self._on("tick")]
        await asyncio.gather(*ticks, self.changes.keep_asking(until))

    async def act(self, elem_id: str, trigger: str, value: Any = None, about: dict[str, Any] | None = None) -> float:
        """What a choice (`value`) or a click (`about` says at what) at a component does. Seconds it took."""
        component = self.find(elem_id)
        if value is not None:
            self.values[component] = value
        self.changes.pause = FIRST_SECONDS
        began = time.perf_counter()
        for event in self._on(trigger, component):
            await self.run(event, about)
        taken = time.perf_counter() - began
        self.noted(f"{trigger} {elem_id}", taken)
        return taken

    def find(self, elem_id: str) -> int:
        """The component with this id of the document."""
        return next(number for number, props in self.props.items() if props.get("elem_id") == elem_id)

    async def pick(self, elem_id: str, row_id: str) -> float:
        """A click on a row: the address changes, then the list says so. Seconds it took."""
        self.path = f"{self.path.partition('?')[0]}?id={row_id}"
        return await self.act(elem_id, "pick", about={"id": row_id})

    def value(self, elem_id: str) -> Any:
        """What that component shows now."""
        return self.values[self.find(elem_id)]

    @property
    def strip(self) -> str:
        """The strip on top, as HTML."""
        return self.changes.strip

    async def run(self, event: dict[str, Any], about: dict[str, Any] | None = None) -> None:
        """One event: its inputs sent, what comes back kept. The address' query goes along, as in the browser."""
        if not event["backend_fn"]:
            return
        data = [self.values.get(number) for number in event["inputs"]]
        body = {"data": data, "event_data": about, "fn_index": event["id"], "session_hash": self.session}
        query = self.path.partition("?")[2]
        if data and "location.search" in str(event.get("js") or ""):
            data[0] = f"?{query}" if query else ""
        address = f"/gradio_api/run/predict{'?' if query else ''}{query}"
        answer = await self.client.post(address, json={**body, "trigger_id": event["targets"][0][0]})
        answer.raise_for_status()
        for number, fresh in zip(event["outputs"], answer.json().get("data", []), strict=False):
            self._show(number, fresh)

    def _read(self, config: dict[str, Any]) -> None:
        self.props = {component["id"]: dict(component["props"]) for component in config["components"]}
        self.values = {number: props.get("value") for number, props in self.props.items()}
        self.events = config["dependencies"]

    def _on(self, trigger: str, component: int | None = None) -> Iterator[dict[str, Any]]:
        for event in self.events:
            if any(name == trigger and component in (None, number) for number, name in event["targets"]):
                yield event

    def _show(self, number: int, fresh: Any) -> None:
        if isinstance(fresh, dict) and fresh.get("__type__") == "update":
            changed = {key: value for key, value in fresh.items() if key != "__type__"}
            self.props.setdefault(number, {}).update(changed)
            if "value" in changed:
                self.values[number] = changed["value"]
        else:
            self.values[number] = fresh

    async def _tick(self, event: dict[str, Any], until: float) -> None:
        """As the browser's timer: at a steady pace, and not again while an answer is still out."""
        timer, due = event["targets"][0][0], time.monotonic()
        while (due := max(due + float(self.values[timer] or 1.0), time.monotonic())) < until:
            await asyncio.sleep(due - time.monotonic())
            if self.props[timer].get("active", True):
                began = time.perf_counter()
                await self.run(event)
                self.noted("poll", time.perf_counter() - began)


@dataclass
class Changes:
    """What static/changes.js does for a page: ask what rows say, have Gradio draw what is no longer true."""

    page: PageClient
    mark: dict[str, str]
    component: int
    pause: float = FIRST_SECONDS
    tag: str = ""
    strip: str = ""

    @classmethod
    def of(cls, page: PageClient) -> "Changes":
        """The page's; of one without rows the strip alone."""
        for number, value in page.values.items():
            if isinstance(value, str) and 'data-sp="changes"' in value:
                return cls(page, dict(re.findall(r'data-(page|chosen|seen)="([^"]*)"', value)), number)
        return cls(page, {}, -1)

    async def look(self) -> None:
        """One question, and what follows from its answer."""
        row = self._field("chosen")
        query = {"page": self.mark.get("page", ""), "id": row, "strip": self.tag}
        answer = await self.page.client.get("/api/changes", params=query)
        answer.raise_for_status()
        body = answer.json()
        if "strip" in body:
            self.tag, self.strip = body["strip"]["tag"], body["strip"]["html"]
        stale = self._is_stale(body["page"], row)
        if stale:
            for event in self.page._on("stale", self.component):
                await self.page.run(event)
        self.pause = FIRST_SECONDS if stale else min(self.pause * GROWTH, float(body["wait"]))

    async def keep_asking(self, until: float) -> None:
        """For as long as the page is open and seen."""
        while time.monotonic() + self.pause < until:
            await asyncio.sleep(self.pause)
            began = time.perf_counter()
            await self.look()
            self.page.noted("poll", time.perf_counter() - began)
        await asyncio.sleep(max(0.0, until - time.monotonic()))

    def _is_stale(self, signature: str, row: str) -> bool:
        seen = self._field("seen").split(DRAWN)[0]
        return bool(signature and seen and signature != seen and row == self._field("chosen"))

    def _field(self, name: str) -> str:
        return str(self.page.value(self.mark[name]) or "") if self.mark.get(name) else ""


@dataclass
class StreamResult:
    """What came through a run's stream: records by index in the order they came, and how it ended."""

    records: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    reconnected: int = 0
    gaps: list[float] = field(default_factory=list)
    """Seconds between the loss of each connection and the first word of the next."""

    @property
    def token_ids(self) -> list[int]:
        return [token["id"] for record in self.records for token in record["tokens"]]


async def follow(
    client: httpx.AsyncClient, run_id: str, seconds: float = 300.0, begun: Callable[[], None] = lambda: None
) -> StreamResult:
    """Read a run's events to its end, asking again after the last one seen whenever the connection is lost.

    `begun` is called when the first record is here.
    """
    result, last, lost_at = StreamResult(), "", 0.0
    deadline = time.monotonic() + seconds
    while not result.end:
        if time.monotonic() > deadline:
            raise TimeoutError(f"run {run_id} did not end; {len(result.records)} records came")
        try:
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
            async with client.stream("GET", f"/api/runs/{run_id}/events", headers=headers) as answer:
                answer.raise_for_status()
                async for name, number, data in _events(answer):
                    if lost_at:
                        result.gaps.append(time.monotonic() - lost_at)
                        lost_at = 0.0
                    last = number or last
                    if name == "step":
                        if not result.records:
                            begun()
                        result.records.append(data)
                    elif name == "end":
                        result.end = data
        except (httpx.TransportError, httpx.HTTPStatusError):
            pass
        if not result.end:
            lost_at = lost_at or time.monotonic()
            result.reconnected += 1
            await asyncio.sleep(AGAIN_SECONDS)
    return result


async def _events(answer: httpx.Response) -> Any:
    """(name, id, data) of every whole event; half of one, cut off by a lost connection, does not count."""
    event: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if not line:
            if event.get("event") and event.get("data"):
                yield event["event"], event.get("id", ""), json.loads(event["data"])
            event = {}
        elif not line.startswith(":"):
            key, _, value = line.partition(": ")
            event[key] = value
