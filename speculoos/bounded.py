"""Reads responses of other servers up to a size limit, so that an endless one cannot fill the memory."""

from typing import Any

NO_COMPRESSION = {"Accept-Encoding": "identity"}
"""Request header that disables compression: a compressed response can expand to any size."""


def read_limited(answer: Any, most: int) -> bytes | None:
    """The raw bytes of a streamed httpx response; None, without reading further, if it has more than `most` bytes."""
    parts, size = [], 0
    for part in answer.iter_raw():
        size += len(part)
        if size > most:
            return None
        parts.append(part)
    return b"".join(parts)
