"""Converts messages to token ids in a child process with limits (speculoos/limited.py), because a chat template is a
program and a tokenizer's regular expressions may never end. Does not import torch.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from serving.catalog import ModelRef
from serving.errors import ApiError
from serving.queueing import UPKEEP, DeviceQueue
from speculoos.limited import START_SECONDS, ChildError, LimitedChild, LimitExceeded

log = logging.getLogger(__name__)
WORK = "serving.prompt_work"
SECONDS, LOAD_SECONDS = 10.0, 60.0
"""Limits for one conversation, of the template and of the tokenizer each; limit for loading a tokenizer."""
MEMORY = 4 * 2**30
TEMPLATE, TOKENIZER = "chat template", "tokenizer"
CAUSES = {
    "time": "took longer than {seconds:g} s",
    "memory": "needed more than {memory:.0f} GB of memory",
    "crash": "crashed or ran out of memory",
}


class Prompts:
    """One child process for all base models, with a queue in which clients take turns as in the device's queue."""

    def __init__(
        self, on_done: Callable[[float], Any] = float, on_failed: Callable[[], Any] = lambda: None, **queue: Any
    ):
        """`on_done` gets the seconds of each conversation; `on_failed` is called for a failed or stopped one."""
        self._child = LimitedChild(MEMORY, (WORK,))
        self._on_done, self._on_failed = on_done, on_failed
        self.queue = DeviceQueue("prompts", limit=START_SECONDS + LOAD_SECONDS + 3 * SECONDS + 60, **queue)

    def warm_up(self) -> None:
        """Start the child process, so that the first request does not wait for its imports."""
        self.queue.submit(UPKEEP, lambda _: self._child.start())

    def close(self, timeout: float = 2.0) -> None:
        """Stop the child process and the queue's thread."""
        self.queue.close(0)
        self._child.close()
        self.queue.close(timeout)

    def render(self, ref: ModelRef, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation; call it on the queue's thread. Raises ApiError `prompt_failed`."""
        return self._encode(ref, lambda: self._call(ref, TEMPLATE, "write", SECONDS, messages))

    def encode(self, ref: ModelRef, text: str) -> list[int]:
        """Like `render`, for a text without chat template, with the tokenizer's special tokens."""
        return self._encode(ref, lambda: (text, False))

    def _encode(self, ref: ModelRef, text_and_templated: Callable[[], tuple[str, bool]]) -> list[int]:
        start = time.monotonic()
        try:
            self._call(ref, TOKENIZER, "load", LOAD_SECONDS)
            return self._call(ref, TOKENIZER, "encode", SECONDS, *text_and_templated())
        except ApiError:
            self._on_failed()
            raise
        finally:
            self._on_done(time.monotonic() - start)

    def _call(self, ref: ModelRef, part: str, function: str, seconds: float, *arguments: Any) -> Any:
        try:
            return self._child.call(f"{WORK}:{function}", ref.base_path, ref.base_sha256, *arguments, seconds=seconds)
        except (LimitExceeded, ChildError) as error:
            if isinstance(error, LimitExceeded):
                cause = CAUSES[error.reason].format(seconds=seconds, memory=MEMORY / 2**30)
                reason = f"{cause} and was stopped"
            else:
                reason = f"failed ({error.kind}: {str(error).splitlines()[0][:200].rstrip('.')})"
            log.warning("The %s of %s %s", part, ref.base_name, reason)
            message = f"The {part} of the model {ref.base_name!r} {reason}; send another text or import a fixed model."
            raise ApiError(400, message, "prompt_failed", "model") from None
