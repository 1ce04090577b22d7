"""A headless client of a workbench page: it opens the page, polls with its timers and sends clicks.

Follows Gradio's client: the page contains its configuration (components, events), component values are stored, and each
event is one POST to `run/predict` with the values of its inputs. `Changes` imitates the polling of static/changes.js;
Gradio timers are supported too. `follow` reads a run's event stream like `EventSource`.
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
RECONNECT_SECONDS = 1.0
"""Delay before reconnecting a lost event stream; browsers wait a few seconds."""
# Delays of static/changes.js: the first one, and its growth factor while nothing changes.
FIRST_SECONDS, GROWTH = 1.0, 1.5
DRAWN = " # "
"""Separator between a signature and its content, as in app/widgets/list_page.py."""
OnDuration = Callable[[str, float], None]


@dataclass
class PageClient:
    """One open page. `on_duration(action, seconds)` is called with the duration of each opening, poll and click."""

    client: httpx.AsyncClient
    path: str
    on_duration: OnDuration = lambda action, seconds: None
    session: str = field(default_factory=lambda: secrets.token_hex(6))
    values: dict[int, Any] = field(default_factory=dict)
    props: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    changes: "Changes" = field(init=False)

    async def open(self) -> float:
        """Load the document, its load events and the status strip; returns the seconds until all are loaded."""
        began = time.perf_counter()
        response = await self.client.get(self.path)
        response.raise_for_status()
        self._read(json.loads(CONFIG.search(response.text).group(1)))
        self.changes = Changes.of(self)
        await asyncio.gather(*(self.run(event) for event in self._on("load")), self.changes.look())
        seconds = time.perf_counter() - began
        self.on_duration(f"open {self.path.partition('?')[0]}", seconds)
        return seconds

    async def stay(self, until: float) -> None:
        """Keep the page open, with its timers, until this value of `time.monotonic`."""
        ticks = [self._tick(event, until) for event in self._on("tick")]
        await asyncio.gather(*ticks, self.changes.poll_until(until))

    async def act(self, elem_id: str, trigger: str, value: Any = None, data: dict[str, Any] | None = None) -> float:
        """Set a component to `value` or click it (`data`: event data); returns the seconds."""
        component = self.find(elem_id)
        if value is not None:
            self.values[component] = value
        self.changes.pause = FIRST_SECONDS
        began = time.perf_counter()
        for event in self._on(trigger, component):
            await self.run(event, data)
        seconds = time.perf_counter() - began
        self.on_duration(f"{trigger} {elem_id}", seconds)
        return seconds

    def find(self, elem_id: str) -> int:
        """The component with this element id."""
        return next(number for number, props in self.props.items() if props.get("elem_id") == elem_id)

    async def pick(self, elem_id: str, row_id: str) -> float:
        """Click a row: changes the URL and sends the event; returns the seconds."""
        self.path = f"{self.path.partition('?')[0]}?id={row_id}"
        return await self.act(elem_id, "pick", data={"id": row_id})

    def value(self, elem_id: str) -> Any:
        """Current value of a component."""
        return self.values[self.find(elem_id)]

    @property
    def strip(self) -> str:
        """The status strip as HTML."""
        return self.changes.strip

    async def run(self, event: dict[str, Any], event_data: dict[str, Any] | None = None) -> None:
        """Send one event with its inputs and the URL's query, and store the returned values."""
        if not event["backend_fn"]:
            return
        data = [self.values.get(number) for number in event["inputs"]]
        body = {"data": data, "event_data": event_data, "fn_index": event["id"], "session_hash": self.session}
        query = self.path.partition("?")[2]
        if data and "location.search" in str(event.get("js") or ""):
            data[0] = f"?{query}" if query else ""
        address = f"/gradio_api/run/predict{'?' if query else ''}{query}"
        response = await self.client.post(address, json={**body, "trigger_id": event["targets"][0][0]})
        response.raise_for_status()
        for number, fresh in zip(event["outputs"], response.json().get("data", []), strict=False):
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
        """Imitate a timer of the browser: regular, but only one request at a time."""
        timer, due = event["targets"][0][0], time.monotonic()
        while (due := max(due + float(self.values[timer] or 1.0), time.monotonic())) < until:
            await asyncio.sleep(due - time.monotonic())
            if self.props[timer].get("active", True):
                began = time.perf_counter()
                await self.run(event)
                self.on_duration("poll", time.perf_counter() - began)


@dataclass
class Changes:
    """The polling of static/changes.js: checks for changed rows and triggers their update."""

    page: PageClient
    attributes: dict[str, str]
    component: int
    pause: float = FIRST_SECONDS
    tag: str = ""
    strip: str = ""

    @classmethod
    def of(cls, page: PageClient) -> "Changes":
        """Read the configuration from a page; pages without rows only update the status strip."""
        for number, value in page.values.items():
            if isinstance(value, str) and 'data-sp="changes"' in value:
                return cls(page, dict(re.findall(r'data-(page|chosen|seen)="([^"]*)"', value)), number)
        return cls(page, {}, -1)

    async def look(self) -> None:
        """Poll once and run the update events if the page is stale."""
        row = self._field("chosen")
        query = {"page": self.attributes.get("page", ""), "id": row, "strip": self.tag}
        response = await self.page.client.get("/api/changes", params=query)
        response.raise_for_status()
        body = response.json()
        if "strip" in body:
            self.tag, self.strip = body["strip"]["tag"], body["strip"]["html"]
        stale = self._is_stale(body["page"], row)
        if stale:
            for event in self.page._on("stale", self.component):
                await self.page.run(event)
        self.pause = FIRST_SECONDS if stale else min(self.pause * GROWTH, float(body["wait"]))

    async def poll_until(self, until: float) -> None:
        """Poll until this value of `time.monotonic`."""
        while time.monotonic() + self.pause < until:
            await asyncio.sleep(self.pause)
            began = time.perf_counter()
            await self.look()
            self.page.on_duration("poll", time.perf_counter() - began)
        await asyncio.sleep(max(0.0, until - time.monotonic()))

    def _is_stale(self, signature: str, row: str) -> bool:
        seen = self._field("seen").split(DRAWN)[0]
        return bool(signature and seen and signature != seen and row == self._field("chosen"))

    def _field(self, name: str) -> str:
        return str(self.page.value(self.attributes[name]) or "") if self.attributes.get(name) else ""


@dataclass
class StreamResult:
    """Events of a run's stream: its records in order, and its end."""

    records: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    reconnected: int = 0
    gaps: list[float] = field(default_factory=list)
    """Seconds between each lost connection and the first event of the next one."""

    @property
    def token_ids(self) -> list[int]:
        return [token["id"] for record in self.records for token in record["tokens"]]


async def follow(
    client: httpx.AsyncClient, run_id: str, seconds: float = 300.0, begun: Callable[[], None] = lambda: None
) -> StreamResult:
    """Read a run's events to its end, reconnecting after the last event when the connection is lost.

    Calls `begun` before it stores the first record.
    """
    result, last, lost_at = StreamResult(), "", 0.0
    deadline = time.monotonic() + seconds
    while not result.end:
        if time.monotonic() > deadline:
            raise TimeoutError(f"run {run_id} did not end; {len(result.records)} records came")
        try:
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
            async with client.stream("GET", f"/api/runs/{run_id}/events", headers=headers) as response:
                response.raise_for_status()
                async for name, number, data in _events(response):
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
            await asyncio.sleep(RECONNECT_SECONDS)
    return result


async def _events(response: httpx.Response) -> Any:
    """Yields (name, id, data) of every complete event."""
    event: dict[str, str] = {}
    async for line in response.aiter_lines():
        if not line:
            if event.get("event") and event.get("data"):
                yield event["event"], event.get("id", ""), json.loads(event["data"])
            event = {}
        elif not line.startswith(":"):
            key, _, value = line.partition(": ")
            event[key] = value
