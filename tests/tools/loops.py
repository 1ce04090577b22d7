"""Running a coroutine from a test, even if the main thread has a running event loop."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def run_async(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a new thread, since Playwright's synchronous API keeps a loop running in the main thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
