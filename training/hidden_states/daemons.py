"""A pool of daemon threads. Unlike ThreadPoolExecutor, it does not keep the process alive at exit."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any


class DaemonPool:
    """`count` threads that run calls in FIFO order."""

    def __init__(self, count: int):
        self._calls: SimpleQueue[tuple[Future, Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """Queue a call; it runs as soon as a thread is free."""
        future: Future = Future()
        self._calls.put((future, function, arguments))
        return future

    def close(self) -> None:
        """End the threads after the calls queued so far."""
        for _ in self._threads:
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, arguments = call
            try:
                future.set_result(function(*arguments))
            except BaseException as error:  # includes panics of Rust code: a waiting caller must not hang
                future.set_exception(error)
