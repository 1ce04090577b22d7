"""When to ask an endpoint again, and how long to wait before."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import openai

FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0


async def ask(request: Callable[[], Awaitable[Any]], retries: int, retried: Callable[[Exception, float], None]) -> Any:
    """Await `request()`; after a passing error wait and do it again, at most `retries` times, then raise that error.

    The wait doubles from half a second to 30 s and is drawn from its upper half, so that many clients spread out; a
    Retry-After header is obeyed up to 30 s. `retried(error, wait)` is told before each wait.
    """
    for attempt in range(retries + 1):
        try:
            made = await request()
            if not getattr(made, "choices", None):
                raise EmptyAnswer()
            return made
        except (openai.OpenAIError, ValueError) as error:  # ValueError: a body that is not JSON
            if attempt == retries or not passing(error):
                raise
            wait = wait_before(attempt, error)
            retried(error, wait)
            await asyncio.sleep(wait)
    raise AssertionError("unreachable")


class EmptyAnswer(openai.OpenAIError):
    """The endpoint answered 200 without a choice."""

    def __str__(self) -> str:
        return "an answer without choices"


def passing(error: Exception) -> bool:
    """True for errors that may be gone next time: 408, 409, 429, 5xx, timeouts, lost connections, broken answers."""
    if isinstance(error, openai.APIStatusError):
        return error.status_code in (408, 409, 429) or error.status_code >= 500
    return True


def wait_before(attempt: int, error: Exception) -> float:
    """Seconds before retry number `attempt` (0-based)."""
    header = error.response.headers.get("retry-after", "") if isinstance(error, openai.APIStatusError) else ""
    if header.replace(".", "", 1).isdigit():
        return min(float(header), LONGEST_WAIT)
    longest = min(FIRST_WAIT * 2**attempt, LONGEST_WAIT)
    return longest * (0.5 + random.random() / 2)


def plain_reason(error: Exception) -> str:
    """One short line: the status and what the endpoint said."""
    if isinstance(error, openai.APITimeoutError):
        return "no answer within the time limit"
    if isinstance(error, openai.APIConnectionError):
        return "no connection"
    body = getattr(error, "body", None)
    said = body.get("message") if isinstance(body, dict) else None
    text = str(said or error).splitlines()[0][:200] if str(said or error) else type(error).__name__
    status = getattr(error, "status_code", None)
    return f"{status} {text}" if status and not text.startswith(str(status)) else text
