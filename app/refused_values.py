"""Errors of Gradio events. A value that a component refuses, such as a string for a slider, gives 400 without a
traceback. Other errors give 500: a SpeculoosError with its message; any other is logged with its location, without
values.

Gradio's own check decides which values are refused, since a page may have changed a component's choices.
"""

import logging
import traceback
from collections import Counter
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import gradio as gr

from app.widgets.problems import error_text
from app.widgets.text import safe
from speculoos.errors import SpeculoosError

log = logging.getLogger(__name__)
SENTENCE = "An input of this event has a value that it does not accept; reload the page."
FAULT = "This failed because of a bug in the workbench; the log of the web process shows where."
FRAMES = 3
"""Number of innermost frames of a traceback that are logged."""
refused: ContextVar[list[str] | None] = ContextVar("refused", default=None)
"""Refusals of the current request. A list, since Gradio runs in a copy of the context."""


def refuse_quietly(blocks: gr.Blocks) -> None:
    """Make `blocks` raise an error without a traceback for values that its components refuse."""
    check = blocks.preprocess_data
    counts: Counter[int] = Counter()

    async def preprocess_data(block_fn: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await check(block_fn, *args, **kwargs)
        except (OSError, MemoryError):
            raise  # an error of the server, not of the value
        except Exception:
            counts[block_fn._id] += 1
            _log(block_fn, counts[block_fn._id])
            if (refusals := refused.get()) is not None:
                refusals.append(SENTENCE)
            raise gr.Error(SENTENCE, print_exception=False) from None

    blocks.preprocess_data = preprocess_data  # type: ignore[method-assign]


def fail_quietly(blocks: gr.Blocks) -> None:
    """Make `blocks` log the location of an unexpected error of an event in one line instead of a traceback."""
    process = blocks.process_api
    counts: Counter[tuple[int, str]] = Counter()

    async def process_api(block_fn: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await process(block_fn, *args, **kwargs)
        except gr.Error as error:
            error.print_exception = False
            raise
        except SpeculoosError as error:
            raise gr.Error(safe(error_text(error)), print_exception=False) from None
        except Exception as error:
            fn = blocks.fns[block_fn] if isinstance(block_fn, int) else block_fn
            place = origin(error)
            counts[fn._id, place] += 1
            if is_power_of_two(count := counts[fn._id, place]):
                log.error("Event %d (%s) failed: %s (%d so far)", fn._id, fn.name, place, count)
            raise gr.Error(FAULT, print_exception=False) from None

    blocks.process_api = process_api  # type: ignore[method-assign]


def origin(error: Exception) -> str:
    """Type and location of an error, without its message, which often contains user input."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    calls = " > ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{type(error).__name__} at {calls}"


def is_power_of_two(count: int) -> bool:
    """Selects which of many equal events are logged, so that an attack cannot fill the log."""
    return count & (count - 1) == 0


def _log(block_fn: Any, count: int) -> None:
    """Log one line without the value."""
    if is_power_of_two(count):
        log.warning(
            "Event %d (%s) was refused: a value that its inputs do not accept (%d so far)",
            block_fn._id,
            block_fn.name,
            count,
        )
