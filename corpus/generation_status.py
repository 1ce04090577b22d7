"""Live status of a running generation for its page: counters, speeds, the first answers, and the first omitted rows of
each kind.

Counters are metrics at step 0, which are overwritten (`now/rows`, `now/tokens`, `now/left_out/KIND`;
`now/speed` and `now/speed/SERVER` in tokens per second); `generate/tokens_per_second` is charted over seconds. Samples
are at step ANSWER or OMITTED_SAMPLE.
"""

import json
import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corpus.conversations import MAX_NAMED_ROWS, Conversation, GenerateOptions
from corpus.shards import ShardWriter, read_lines, shard_files
from speculoos.reporting import Reporter

EVERY_SECONDS = 2.0
WINDOW_SECONDS = 30.0
"""Averaging window of speeds."""
SAMPLES_PER_KIND = 3
"""Number of answers shown, and of omitted rows per kind."""
ANSWER, OMITTED_SAMPLE = 0, 1
"""The step of a sample is its kind."""
MAX_CHARS = 1500
"""Maximum characters of a shown text."""
ALL_SERVERS = ""


class GenerationStatus:
    """Rows and counters of one run that writes to `shards`, whose rows of earlier attempts are counted. Call
    `accept_row` and `add_row`, or `add_omitted`, for each row, and `update` regularly.

    `failed` are the ids and reasons of omitted rows, `kinds` their number by kind; the caller counts `tokens` and the
    answers by `finish` reason.
    """

    def __init__(self, reporter: Reporter, shards: ShardWriter, options: GenerateOptions, total: int):
        self._reporter, self._shards, self._options, self._total = reporter, shards, options, total
        self._rows, self._tokens = _count_existing(shards.folder)
        self._sampled_answers = SAMPLES_PER_KIND if self._rows else 0
        self.failed: list[dict[str, str]] = []
        self.kinds: Counter[str] = Counter()
        self.tokens, self.finish, self.complete = 0, Counter[str](), True
        self._started = self._last = time.monotonic()
        self._points: deque[tuple[float, dict[str, int]]] = deque([(self._started, {})])

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def speed(self) -> float:
        """Tokens per second of the whole run."""
        return self.tokens / max(self.seconds, 1e-9)

    def out_of_time(self) -> bool:
        """Whether the time limit is reached; the run is then not complete."""
        limit = self._options.max_minutes
        late = limit is not None and self.seconds > limit * 60
        self.complete = self.complete and not late
        return late

    def report(self) -> dict[str, Any]:
        """The part of a generation's report that local and remote ones share."""
        return {
            "rows": len(self._shards.done),
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "tokens_per_second": round(self.speed, 1),
            "finish": dict(self.finish),
            "failed": self.failed,
            "left_out": dict(self.kinds),
            "complete": self.complete,
        }

    def accept_row(self, row: Conversation) -> bool:
        """Whether a complete row belongs in the dataset; counts it as omitted otherwise."""
        if problem := row.problem(self._options):
            self.add_omitted(row, *problem)
        return not problem

    def add_row(self, row: dict[str, Any], tokens: int) -> None:
        """Store a finished row with `tokens` generated tokens."""
        self._shards.add(row)
        self._rows, self._tokens = self._rows + 1, self._tokens + tokens
        if self._sampled_answers < SAMPLES_PER_KIND:
            self._sampled_answers += 1
            messages = row["messages"]
            self._sample(ANSWER, row["id"], messages[-2]["content"], messages[-1], finish=row["finish"][-1])

    def add_omitted(self, row: Conversation, kind: str, reason: str) -> None:
        """Count an omitted row with its reason; the first ones of each kind are logged and shown."""
        self.failed.append({"id": row.id, "reason": reason})
        self.kinds[kind] += 1
        if self.kinds[kind] <= MAX_NAMED_ROWS:
            self._reporter.log(f"{row.id} is left out: {reason}", "warning")
        if self.kinds[kind] <= SAMPLES_PER_KIND:
            answer = {"content": row.answers[-1] if row.answers else ""}
            prompt = row.users[max(len(row.answers) - 1, 0)]
            self._sample(OMITTED_SAMPLE, row.id, prompt, answer, kind=kind, reason=reason)

    def progress(self, note: str) -> None:
        done = len(self._shards.done) + len(self.failed)
        self._reporter.progress(done, self._total, "rows", note)

    def update(self, tokens: int | Mapping[str, int], last: bool = False) -> None:
        """Report the status every few seconds; `tokens` are those of this run, in total or by server."""
        now = time.monotonic()
        if now - self._last < EVERY_SECONDS and not last:
            return
        self._last = now
        by_server = {ALL_SERVERS: tokens} if isinstance(tokens, int) else {**tokens, ALL_SERVERS: sum(tokens.values())}
        speeds = self._speeds(now, by_server)
        values = {"rows": self._rows, "tokens": self._tokens}
        values |= {f"left_out/{kind}": count for kind, count in self.kinds.items()}
        values |= {"speed" + (f"/{name[:60]}" if name else ""): speed for name, speed in speeds.items()}
        self._reporter.metrics(0, {f"now/{name}": float(value) for name, value in values.items()})
        self._reporter.metrics(int(now - self._started), {"generate/tokens_per_second": speeds[ALL_SERVERS]})

    def _speeds(self, now: float, tokens: dict[str, int]) -> dict[str, float]:
        while len(self._points) > 1 and now - self._points[1][0] >= WINDOW_SECONDS:
            self._points.popleft()
        start, old = self._points[0]
        self._points.append((now, tokens))
        return {name: round((count - old.get(name, 0)) / max(now - start, 1e-9), 1) for name, count in tokens.items()}

    def _sample(self, step: int, row_id: str, prompt: str, answer: Mapping[str, Any], **extra: str) -> None:
        text = "\n".join(filter(None, (answer.get("reasoning_content"), answer["content"])))
        self._reporter.sample(step, {"id": row_id, "prompt": prompt[:MAX_CHARS], "text": text[:MAX_CHARS], **extra})


def _count_existing(folder: Path) -> tuple[int, int]:
    """Numbers of rows and of generated tokens."""
    rows = tokens = 0
    for _, _, line in read_lines(folder) if shard_files(folder) else ():
        row = json.loads(line)
        rows += 1
        tokens += row.get("answer_tokens") or sum(end - start for start, end in row.get("loss_spans", ()))
    return rows, tokens
