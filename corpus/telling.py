"""What a running generation says of itself for its page: counters and speeds now and then, the first answers, and the
first rows of each kind that are left out.

Counters are metrics at step 0, each overwriting the one before (`now/rows`, `now/tokens`, `now/bytes`,
`now/left_out/KIND`; `now/speed` and `now/speed/SERVER` in tokens a second); `generate/tokens_per_second` is for a
chart, by seconds. Samples are at step ANSWER or LEFT_OUT.
"""

import json
import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corpus.conversations import NAMED, Conversation
from corpus.shards import read_lines, shard_files
from speculoos.reporting import Reporter

EVERY_SECONDS = 2.0
WINDOW_SECONDS = 30.0
"""Of which a speed is the mean."""
SHOWN = 3
"""First answers, and first rows of a kind that are left out."""
ANSWER, LEFT_OUT = 0, 1
"""Steps of samples: what they are."""
LONGEST = 1500
"""Characters of a text that is shown."""
ALL = ""


class Telling:
    """One run's. `made(row, tokens)` and `left_out(…)` at each row, `now(tokens)` whenever there is time.

    `failed` are the ids and reasons of the rows left out, `kinds` how many of each kind.
    """

    def __init__(self, reporter: Reporter, folder: str | Path):
        """What an earlier attempt left in `folder` counts as made."""
        self._reporter = reporter
        self._rows, self._tokens, self._bytes = _made_before(Path(folder))
        self._shown = SHOWN if self._rows else 0
        self.failed: list[dict[str, str]] = []
        self.kinds: Counter[str] = Counter()
        self._began = self._last = time.monotonic()
        self._points: deque[tuple[float, dict[str, int]]] = deque([(self._began, {})])

    def made(self, row: Mapping[str, Any], tokens: int) -> None:
        """A row that is kept, with so many generated tokens."""
        self._rows, self._tokens = self._rows + 1, self._tokens + tokens
        self._bytes += len(json.dumps(row, ensure_ascii=False).encode()) + 1
        if self._shown < SHOWN:
            self._shown += 1
            messages = row["messages"]
            self._sample(ANSWER, row["id"], messages[-2]["content"], messages[-1], finish=row["finish"][-1])

    def left_out(self, row: Conversation, kind: str, reason: str) -> None:
        """A row that is not kept, and why: counted, and the first of a kind logged and shown."""
        self.failed.append({"id": row.id, "reason": reason})
        self.kinds[kind] += 1
        if self.kinds[kind] <= NAMED:
            self._reporter.log(f"{row.id} is left out: {reason}", "warning")
        if self.kinds[kind] <= SHOWN:
            answer = {"content": row.answers[-1] if row.answers else ""}
            prompt = row.users[max(len(row.answers) - 1, 0)]
            self._sample(LEFT_OUT, row.id, prompt, answer, kind=kind, reason=reason)

    def now(self, tokens: int | Mapping[str, int], last: bool = False) -> None:
        """Say how it is, every few seconds: `tokens` generated since the start of this run, in all or by server."""
        at = time.monotonic()
        if at - self._last < EVERY_SECONDS and not last:
            return
        self._last = at
        by_server = {ALL: tokens} if isinstance(tokens, int) else {**tokens, ALL: sum(tokens.values())}
        speeds = self._speeds(at, by_server)
        counted = {"rows": self._rows, "tokens": self._tokens, "bytes": self._bytes}
        counted |= {f"left_out/{kind}": count for kind, count in self.kinds.items()}
        counted |= {"speed" + (f"/{name[:60]}" if name else ""): speed for name, speed in speeds.items()}
        self._reporter.metrics(0, {f"now/{name}": float(value) for name, value in counted.items()})
        self._reporter.metrics(int(at - self._began), {"generate/tokens_per_second": speeds[ALL]})

    def _speeds(self, at: float, tokens: dict[str, int]) -> dict[str, float]:
        """Tokens a second lately."""
        while len(self._points) > 1 and at - self._points[1][0] >= WINDOW_SECONDS:
            self._points.popleft()
        since, before = self._points[0]
        self._points.append((at, tokens))
        return {name: round((count - before.get(name, 0)) / max(at - since, 1e-9), 1) for name, count in tokens.items()}

    def _sample(self, step: int, row_id: str, prompt: str, answer: Mapping[str, Any], **more: str) -> None:
        text = "\n".join(filter(None, (answer.get("reasoning_content"), answer["content"])))
        self._reporter.sample(step, {"id": row_id, "prompt": prompt[:LONGEST], "text": text[:LONGEST], **more})


def _made_before(folder: Path) -> tuple[int, int, int]:
    """(rows, tokens, bytes) in a folder."""
    rows = tokens = size = 0
    for _, _, line in read_lines(folder) if shard_files(folder) else ():
        row = json.loads(line)
        rows, size = rows + 1, size + len(line)
        tokens += row.get("answer_tokens") or sum(end - start for start, end in row.get("loss_spans", ()))
    return rows, tokens, size
