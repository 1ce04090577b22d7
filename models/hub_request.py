"""Requests to the hub with limits on time and response size."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from models.hub import in_thread, offline, with_hub_errors
from speculoos.errors import Unavailable

SECONDS = 8.0
"""Total time of a request, including the DNS lookup, which cannot be interrupted."""
_slots = threading.BoundedSemaphore(4)
"""Concurrent requests."""


def get_from_hub(
    name: str,
    path: str,
    max_bytes: int,
    token: str = "",
    *,
    params: Mapping[str, Any] | None = None,
    truncate: bool = False,
    noun: str = "model",
    seconds: float = 0.0,
) -> bytes:
    """The response to a GET request for `path`. A response longer than `max_bytes` is truncated with `truncate`, else
    an error. `name` and `noun` are used in error messages. Raises Unavailable or NotFound."""
    if offline():
        raise Unavailable(f"{name}: the hub is not used while HF_HUB_OFFLINE is set; use files of this server instead.")
    seconds = seconds or SECONDS
    deadline = time.monotonic() + seconds
    too_late = f"{name}: the hub did not answer within {seconds:g} seconds; check the network, or try again later."

    def get() -> bytes:
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers, get_session

        headers = build_hf_headers(token=token or False)
        headers |= {"Range": f"bytes=0-{max_bytes - 1}"} if truncate else {}
        url, content = f"{constants.ENDPOINT}/{path}", bytearray()
        with get_session().stream("GET", url, params=params, headers=headers, timeout=seconds + 1) as response:
            _check_status(name, response)
            for part in response.iter_bytes():
                content += part
                if len(content) >= max_bytes and truncate:
                    break
                if len(content) > max_bytes:
                    limit = f"{max_bytes / 1e6:.0f} MB, the limit of a preview"
                    raise Unavailable(f"{name}: the hub's response is larger than {limit}.")
                if time.monotonic() > deadline:
                    raise Unavailable(too_late)
        return bytes(content[:max_bytes])

    return with_hub_errors(name, lambda: _with_timeout(name, get, seconds, too_late), noun)


def _with_timeout(name: str, get: Callable[[], bytes], seconds: float, too_late: str) -> bytes:
    """`get()` in a thread with a timeout; a later result is ignored."""
    if not _slots.acquire(blocking=False):
        raise Unavailable(f"{name}: too many requests are waiting for the hub; try again in a moment.")

    def run() -> bytes:
        try:
            return get()
        finally:
            _slots.release()

    try:
        return in_thread(run).result(seconds)
    except TimeoutError:
        raise Unavailable(too_late) from None


def _check_status(name: str, response: Any) -> None:
    """Raise the huggingface_hub error of a failed response, from its status and headers; the body is not read."""
    from huggingface_hub.utils import hf_raise_for_status

    if response.status_code not in (200, 206):
        headers = {name: value for name, value in response.headers.items() if name.lower().startswith("x-error")}
        hf_raise_for_status(type(response)(response.status_code, headers=headers, request=response.request))
        raise Unavailable(f"{name}: the hub answered with status {response.status_code}; try again later.")
