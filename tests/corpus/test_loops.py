"""Coroutines run from plain code, below a running event loop too."""

import asyncio
import contextvars
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from corpus import loops
from speculoos.settings import CLONE
from tests.tools.loops import run_async

CELL = contextvars.ContextVar("CELL", default="none")
NOTEBOOK = """
import asyncio, _thread, signal
from corpus import loops

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored

async def work():
    try:
        _thread.interrupt_main()
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.sleep(0.05)
        print("tidied up", flush=True)
        raise

async def cell():
    try:
        loops.run(work())
    except KeyboardInterrupt:
        print("interrupted", flush=True)

asyncio.new_event_loop().run_until_complete(cell())
"""
"""Ctrl-C while a cell of a notebook waits: it comes as KeyboardInterrupt, since no `asyncio.run` catches the signal."""


def below_a_loop(function: Callable[[], Any]) -> Any:
    """Call `function` in a thread whose event loop runs."""

    async def cell() -> Any:
        return function()

    return run_async(cell())


@pytest.mark.parametrize("call", [lambda f: f(), below_a_loop], ids=["plain", "below a loop"])
def test_what_is_returned_or_raised_arrives(call: Callable[[Callable[[], Any]], Any]) -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        if number < 0:
            raise ValueError("below zero")
        return 2 * number

    assert call(lambda: loops.run(double(21))) == 42
    with pytest.raises(ValueError, match="below zero"):
        call(lambda: loops.run(double(-1)))


def test_the_callers_context_goes_along() -> None:
    async def cell_name() -> str:
        return CELL.get()

    def call() -> str:
        CELL.set("cell 7")
        return loops.run(cell_name())

    assert below_a_loop(call) == "cell 7"


def test_an_interrupt_below_a_loop_cancels_waits_and_is_raised() -> None:
    done = subprocess.run([sys.executable, "-c", NOTEBOOK], cwd=CLONE, capture_output=True, text=True, timeout=30)
    assert done.stdout.split("\n")[:2] == ["tidied up", "interrupted"], done.stderr
