"""One request to the hub whose answer is bounded in time and size: somebody waits for it."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from models.hub import guarded, offline
from speculoos.errors import Unavailable

SECONDS = 8.0
"""All that the hub has, for finding its address too, which cannot be interrupted."""
AT_ONCE = 4
OFFLINE = "{}: the hub is not asked while HF_HUB_OFFLINE is set; use files of this server instead."
SLOW = "{}: the hub did not answer within {:g} seconds; check the network, or try again later."
LARGE = "{}: the hub's answer is larger than {:.0f} MB, which is too much for a look."
BUSY = "{}: others wait for the hub already; try again in a moment."
_places = threading.BoundedSemaphore(AT_ONCE)


@dataclass(frozen=True)
class Question:
    """What the hub has at `path`: at most `most` bytes, `cut` off there or refused. Sentences begin with `name`, a
    `noun` of the hub. `seconds`: SECONDS where nobody says otherwise."""

    name: str
    path: str
    most: int
    token: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)
    cut: bool = False
    noun: str = "model"
    seconds: float = field(default_factory=lambda: SECONDS)


def answer(question: Question) -> bytes:
    """Raises Unavailable, or NotFound where there is no such thing."""
    if offline():
        raise Unavailable(OFFLINE.format(question.name))
    work = partial(guarded, question.name, partial(_get, question), question.noun)
    return _in_time(question.name, work, question.seconds)


def _in_time(name: str, work: Callable[[], bytes], seconds: float) -> bytes:
    """`work()` in a thread, waited for no longer than `seconds`; what takes longer ends unheard."""
    if not _places.acquire(blocking=False):
        raise Unavailable(BUSY.format(name))
    told: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            told.put(work())
        except Exception as error:
            told.put(error)
        finally:
            _places.release()

    threading.Thread(target=run, name="hub-ask", daemon=True).start()
    try:
        found = told.get(timeout=seconds)
    except queue.Empty:
        raise Unavailable(SLOW.format(name, seconds)) from None
    if isinstance(found, Exception):
        raise found
    return found


def _get(question: Question) -> bytes:
    import httpx
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session

    headers = build_hf_headers(token=question.token or False)
    headers |= {"Range": f"bytes=0-{question.most - 1}"} if question.cut else {}
    where = {"url": f"{constants.ENDPOINT}/{question.path}", "params": question.asked, "headers": headers}
    try:
        with get_session().stream("GET", **where, timeout=question.seconds) as response:
            if response.status_code not in (200, 206):
                _refuse(question.name, response)
            return _read(question, response)
    except httpx.TimeoutException:  # it may come just before `_in_time` gives up
        raise Unavailable(SLOW.format(question.name, question.seconds)) from None


def _refuse(name: str, response: Any) -> None:
    """Raises what the hub's library makes of an answer that is an error, by its headers; its text is not read."""
    from huggingface_hub.utils import hf_raise_for_status

    told = {name: value for name, value in response.headers.items() if name.lower().startswith("x-error")}
    hf_raise_for_status(type(response)(response.status_code, headers=told, request=response.request))
    raise Unavailable(f"{name}: the hub answered with status {response.status_code}; try again later.")


def _read(question: Question, response: Any) -> bytes:
    until, most, content = time.monotonic() + question.seconds, question.most, bytearray()
    for part in response.iter_bytes():
        content += part
        if len(content) >= most and question.cut:
            break
        if len(content) > most:
            raise Unavailable(LARGE.format(question.name, most / 1e6))
        if time.monotonic() > until:
            raise Unavailable(SLOW.format(question.name, question.seconds))
    return bytes(content[:most])
