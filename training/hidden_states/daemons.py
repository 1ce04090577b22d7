"""Threads that ask servers. A process that ends does not wait for them, as it would for those of an executor."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any


class Daemons:
    """`count` threads that take calls in the order they came in."""

    def __init__(self, count: int):
        self._calls: SimpleQueue[tuple[Future, Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """Begin it as soon as a thread is free."""
        future: Future = Future()
        self._calls.put((future, function, arguments))
        return future

    def close(self) -> None:
        """The threads end when they have done what was asked so far."""
        for _ in self._threads:
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, arguments = call
            try:
                future.set_result(function(*arguments))
            except BaseException as error:  # also a panic of Rust code: who waits must not wait for ever
                future.set_exception(error)
