"""Messages to token ids, away from the device: a chat template is a program and a tokenizer's expressions may never
end, so both run in a child process with limits (speculoos/limited.py). No torch here.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from serving.catalog import ModelRef
from serving.errors import ApiError
from serving.queueing import UPKEEP, DeviceQueue
from speculoos.limited import START_SECONDS, ChildError, LimitedChild, Overrun

log = logging.getLogger(__name__)
WORK = "serving.prompt_work"
SECONDS, LOAD_SECONDS = 10.0, 60.0
"""For one conversation in the template, and again in the tokenizer; for reading a tokenizer's files."""
MEMORY = 4 * 2**30
TEMPLATE, TOKENIZER = "chat template", "tokenizer"
CAUSES = {
    "time": "took longer than {seconds:g} s",
    "memory": "needed more than {memory:.0f} GB of memory",
    "crash": "crashed or ran out of memory",
}


class Prompts:
    """One child for all bases and a queue before it, in which clients take turns as they do for the device."""

    def __init__(
        self, on_done: Callable[[float], Any] = float, on_failed: Callable[[], Any] = lambda: None, **queue: Any
    ):
        """`on_done` is told how many seconds each conversation took, `on_failed` that a template or tokenizer failed or
        was stopped. `queue`: its bounds."""
        self._child = LimitedChild(MEMORY, (WORK,))
        self._on_done, self._on_failed = on_done, on_failed
        self.queue = DeviceQueue("prompts", limit=START_SECONDS + LOAD_SECONDS + 3 * SECONDS + 60, **queue)

    def warm_up(self) -> None:
        """Start the child now, so that the first question does not wait for its imports."""
        self.queue.submit(UPKEEP, lambda _: self._child.start())

    def close(self, timeout: float = 2.0) -> None:
        """End the child and the thread."""
        self.queue.close(0)
        self._child.close()
        self.queue.close(timeout)

    def render(self, ref: ModelRef, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation, as `models.chat.render` makes them. Call it from the queue's thread.

        Raises ApiError `prompt_failed` when the base's template or tokenizer fails or takes too much time or memory.
        """
        with self._counted():
            self._call(ref, TOKENIZER, "load", LOAD_SECONDS)
            text, templated = self._call(ref, TEMPLATE, "write", SECONDS, messages)
            return self._call(ref, TOKENIZER, "encode", SECONDS, text, templated)

    def encode(self, ref: ModelRef, text: str) -> list[int]:
        """Token ids of a text as it is, with the special tokens that the tokenizer adds. Otherwise as `render`."""
        with self._counted():
            self._call(ref, TOKENIZER, "load", LOAD_SECONDS)
            return self._call(ref, TOKENIZER, "encode", SECONDS, text, False)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except ApiError:
            self._on_failed()
            raise
        finally:
            self._on_done(time.monotonic() - began)

    def _call(self, ref: ModelRef, what: str, work: str, seconds: float, *arguments: Any) -> Any:
        try:
            return self._child.call(f"{WORK}:{work}", ref.base_path, ref.base_sha256, *arguments, seconds=seconds)
        except Overrun as error:
            reason = CAUSES[error.reason].format(seconds=seconds, memory=MEMORY / 2**30)
            log.warning("The %s of %s %s and was stopped", what, ref.base_name, reason)
            raise _failed(ref, what, f"{reason} and was stopped") from None
        except ChildError as error:
            log.warning("The %s of %s failed: %s: %s", what, ref.base_name, error.kind, error)
            first = str(error).splitlines()[0][:200].rstrip(".")
            raise _failed(ref, what, f"failed ({error.kind}: {first})") from None


def _failed(ref: ModelRef, what: str, reason: str) -> ApiError:
    message = f"The {what} of the model {ref.base_name!r} {reason}; send another text or bring a mended model here."
    return ApiError(400, message, "prompt_failed", "model")
