"""Answers of foreign servers, read no further than they can rightly go: one that never ends would fill the memory."""

from typing import Any

AS_IT_IS = {"Accept-Encoding": "identity"}
"""Header of such a question: what is packed could unpack to any size."""


def read_whole(answer: Any, most: int) -> bytes | None:
    """The bytes of an answer that httpx streams, as they travelled; None, and no more of it read, where there are
    more than `most`."""
    parts, read = [], 0
    for part in answer.iter_raw():
        read += len(part)
        if read > most:
            return None
        parts.append(part)
    return b"".join(parts)
