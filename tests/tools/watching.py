"""Calling a function repeatedly during a block."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watched(look: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call `look` every `seconds` in a thread while the block runs."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(seconds):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
