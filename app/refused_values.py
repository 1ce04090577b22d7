"""Values that Gradio's own components refuse, such as a string for a slider: answered with 400, without a traceback.

Only Gradio knows which values a component takes now (a page may have changed its choices), so its own check decides.
"""

import logging
from collections import Counter
from contextvars import ContextVar
from typing import Any

import gradio as gr

log = logging.getLogger(__name__)
SENTENCE = "An input of this event holds a value that it does not take; reload the page."
refused: ContextVar[list[str] | None] = ContextVar("refused", default=None)
"""The refusals of the request that is being answered. A list, since Gradio answers in a copy of the context."""


def refuse_quietly(blocks: gr.Blocks) -> None:
    """Make `blocks` raise an error without a traceback for values that its components refuse."""
    check = blocks.preprocess_data
    counts: Counter[int] = Counter()

    async def preprocess_data(block_fn: Any, *args: Any, **more: Any) -> Any:
        try:
            return await check(block_fn, *args, **more)
        except (OSError, MemoryError):
            raise  # a fault of the server, not of the value
        except Exception:
            counts[block_fn._id] += 1
            _log(block_fn, counts[block_fn._id])
            if (found := refused.get()) is not None:
                found.append(SENTENCE)
            raise gr.Error(SENTENCE, print_exception=False) from None

    blocks.preprocess_data = preprocess_data  # type: ignore[method-assign]


def _log(block_fn: Any, count: int) -> None:
    """One line without the value. Only counts that are powers of two are logged, so that an attack cannot fill the
    log."""
    if count & (count - 1) == 0:
        log.warning(
            "Event %d (%s) was refused: a value that its inputs do not take (%d so far)",
            block_fn._id,
            block_fn.name,
            count,
        )
