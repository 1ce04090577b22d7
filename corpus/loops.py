"""Running a coroutine from plain code, whether or not an event loop runs in this thread already."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from threading import Event
from typing import Any, TypeVar

Result = TypeVar("Result")
WAKE_SECONDS = 0.5


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` returns or raises. Ctrl-C cancels it, waits until it has tidied up, and raises KeyboardInterrupt.

    `asyncio.run` does that too, but not below a loop that runs already, as in a notebook; there `work` gets a thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    return _in_a_thread(work)


def _in_a_thread(work: Coroutine[Any, Any, Result]) -> Result:
    """The same in a thread and a loop of its own, with this thread's context (a notebook's output cell is in it)."""
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()
    stopped, tidied = Event(), Event()

    async def watched() -> Result:
        begun.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        try:
            if stopped.is_set():  # after `begun`, as below `begun` after `stopped`: one of both sees the other
                work.close()
                raise asyncio.CancelledError
            return await work
        finally:
            tidied.set()

    with ThreadPoolExecutor(1, "coroutine") as pool:
        try:
            ended = pool.submit(copy_context().run, asyncio.run, watched())
            while not wait([ended], WAKE_SECONDS).done:
                pass  # a wait without end would not see every kind of interrupt
            return ended.result()
        except BaseException:  # an interrupt may come at any place above, before `ended` has its name too
            stopped.set()
            if begun.done():
                _cancel(*begun.result())
                tidied.wait()  # a pool that was interrupted as it started its thread does not wait for it
            raise


def _cancel(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[Any]") -> None:
    with suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(task.cancel)
