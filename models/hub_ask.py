"""Requests to the hub with limits on time and response size."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from models.hub import offline, with_hub_errors
from speculoos.errors import Unavailable

SECONDS = 8.0
"""Total time of a request, including the DNS lookup, which cannot be interrupted."""
MAX_CONCURRENT = 4
OFFLINE_MESSAGE = "{}: the hub is not used while HF_HUB_OFFLINE is set; use files of this server instead."
TIMEOUT_MESSAGE = "{}: the hub did not answer within {:g} seconds; check the network, or try again later."
TOO_LARGE_MESSAGE = "{}: the hub's response is larger than {:.0f} MB, the limit of a preview."
BUSY_MESSAGE = "{}: too many requests are waiting for the hub; try again in a moment."
_slots = threading.BoundedSemaphore(MAX_CONCURRENT)


@dataclass(frozen=True)
class HubRequest:
    """A GET request for `path` with the query parameters `params`. A response longer than `max_bytes` is truncated
    with `truncate`, else an error. `name` and `noun` are used in error messages."""

    name: str
    path: str
    max_bytes: int
    token: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    truncate: bool = False
    noun: str = "model"
    seconds: float = field(default_factory=lambda: SECONDS)


def send_hub_request(question: HubRequest) -> bytes:
    """The response body. Raises Unavailable or NotFound."""
    if offline():
        raise Unavailable(OFFLINE_MESSAGE.format(question.name))
    work = partial(with_hub_errors, question.name, partial(_get, question), question.noun)
    return _with_timeout(question.name, work, question.seconds)


def _with_timeout(name: str, work: Callable[[], bytes], seconds: float) -> bytes:
    """`work()` in a thread with a timeout; a later result is ignored."""
    if not _slots.acquire(blocking=False):
        raise Unavailable(BUSY_MESSAGE.format(name))
    results: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put(work())
        except Exception as error:
            results.put(error)
        finally:
            _slots.release()

    threading.Thread(target=run, name="hub-ask", daemon=True).start()
    try:
        result = results.get(timeout=seconds)
    except queue.Empty:
        raise Unavailable(TIMEOUT_MESSAGE.format(name, seconds)) from None
    if isinstance(result, Exception):
        raise result
    return result


def _get(question: HubRequest) -> bytes:
    import httpx
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session

    headers = build_hf_headers(token=question.token or False)
    headers |= {"Range": f"bytes=0-{question.max_bytes - 1}"} if question.truncate else {}
    url, seconds = f"{constants.ENDPOINT}/{question.path}", question.seconds
    try:
        with get_session().stream("GET", url, params=question.params, headers=headers, timeout=seconds) as response:
            if response.status_code not in (200, 206):
                _raise_error(question.name, response)
            return _read(question, response)
    except httpx.TimeoutException:  # may occur just before the timeout of `_with_timeout`
        raise Unavailable(TIMEOUT_MESSAGE.format(question.name, question.seconds)) from None


def _raise_error(name: str, response: Any) -> None:
    """Raise the huggingface_hub error of a response, from its status and headers; the body is not read."""
    from huggingface_hub.utils import hf_raise_for_status

    headers = {name: value for name, value in response.headers.items() if name.lower().startswith("x-error")}
    hf_raise_for_status(type(response)(response.status_code, headers=headers, request=response.request))
    raise Unavailable(f"{name}: the hub answered with status {response.status_code}; try again later.")


def _read(question: HubRequest, response: Any) -> bytes:
    deadline, limit, content = time.monotonic() + question.seconds, question.max_bytes, bytearray()
    for part in response.iter_bytes():
        content += part
        if len(content) >= limit and question.truncate:
            break
        if len(content) > limit:
            raise Unavailable(TOO_LARGE_MESSAGE.format(question.name, limit / 1e6))
        if time.monotonic() > deadline:
            raise Unavailable(TIMEOUT_MESSAGE.format(question.name, question.seconds))
    return bytes(content[:limit])
