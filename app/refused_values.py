"""Errors of Gradio events. A value that a component refuses, such as a string for a slider, gives 400 without a
traceback. Other errors give 500: a SpeculoosError with its message; any other is logged with its location, without
values.

Gradio's own check decides which values are refused, since a page may have changed a component's choices.
"""

import logging
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import gradio as gr

from app.widgets.problems import error_text
from app.widgets.text import safe
from speculoos.errors import SpeculoosError

log = logging.getLogger(__name__)
REFUSED = "An input of this event has a value that it does not accept; reload the page."
FAULT = "This failed because of a bug in the workbench; the log of the web process shows where."
FRAMES = 3  # number of innermost frames of a traceback that are logged
_counts: Counter[str] = Counter()


def log_rarely(level: int, text: str) -> None:
    """Log only the 1st, 2nd, 4th, 8th … of equal texts, so that an attack cannot fill the log."""
    _counts[text] += 1
    if (count := _counts[text]) & (count - 1) == 0:
        log.log(level, "%s (%d so far)", text, count)


def fail_quietly(blocks: gr.Blocks) -> None:
    """Make `blocks` raise REFUSED without a traceback for values that its components refuse, and log the location of
    another unexpected error in one line."""
    check, process = blocks.preprocess_data, blocks.process_api

    async def preprocess_data(block_fn: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await check(block_fn, *args, **kwargs)
        except (OSError, MemoryError):
            raise  # an error of the server, not of the value
        except Exception:
            what = "was refused: a value that its inputs do not accept"
            log_rarely(logging.WARNING, f"Event {block_fn._id} ({block_fn.name}) {what}")
            raise gr.Error(REFUSED, print_exception=False) from None

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
            log_rarely(logging.ERROR, f"Event {fn._id} ({fn.name}) failed: {origin(error)}")
            raise gr.Error(FAULT, print_exception=False) from None

    blocks.preprocess_data, blocks.process_api = preprocess_data, process_api  # type: ignore[method-assign]


def origin(error: Exception) -> str:
    """Type and location of an error, without its message, which often contains user input."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    calls = " > ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{type(error).__name__} at {calls}"
