"""Acceptance metrics published by servers: fields of a response, or Prometheus counters.

| server | with each answer | counters |
| --- | --- | --- |
| Speculoos | `speculation_summary` | |
| vLLM | `metrics.speculative_decoding` (`--per-request-spec-decode-metrics`) | `vllm:spec_decode_*_total` |
| llama.cpp | `timings` | `llamacpp:spec_decode_*_total` (`--metrics`) |
| SGLang | `meta_info` of a choice (`return_meta_info`) | |
| TensorRT-LLM | `avg_decoded_tokens_per_iter` of a choice | |

All of them include the target model's own token: τ is tokens per verification, as everywhere in this project. The first
token of an answer comes from the prefill: vLLM and llama.cpp do not count it.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import httpx
from prometheus_client.parser import text_string_to_metric_families

from speculoos.settings import Endpoint

POSITION = re.compile("[0-9]{1,2}")
MAX_DEPTH = 100
"""Maximum depth of an answer's acceptance by depth; deeper ones are ignored."""
MAX_BYTES, TIMEOUT = 8 << 20, 10.0
COUNTERS = ("vllm:spec_decode_num_", "llamacpp:spec_decode_num_")
META_INFO = {"return_meta_info": True}
"""Request fields with which SGLang returns its metrics."""


class PublishedStep(NamedTuple):
    """Number of draft tokens accepted and drafted in one verification, which emits one more token than it accepts."""

    accepted: int
    drafted: int


@dataclass(frozen=True)
class PublishedAcceptance:
    """Tokens, number of verifications, and `accepted` draft tokens by depth (() if only totals are published)."""

    tokens: float = 0.0
    verifications: float = 0.0
    accepted: tuple[float, ...] = ()
    drafted: float | None = None
    """Total number of draft tokens; None if it is not published."""
    steps: tuple[PublishedStep, ...] | None = None
    """The verifications of one answer in order, after its first token, which no step emitted; None if the server
    publishes totals only, or not all steps. The answer's end may cut the last step's tokens."""

    def __sub__(self, other: "PublishedAcceptance") -> "PublishedAcceptance":
        longer = (*other.accepted, *[0.0] * (len(self.accepted) - len(other.accepted)))
        accepted = tuple(mine - theirs for mine, theirs in zip(self.accepted, longer, strict=False))
        return PublishedAcceptance(self.tokens - other.tokens, self.verifications - other.verifications, accepted)

    def __add__(self, other: "PublishedAcceptance") -> "PublishedAcceptance":
        """Totals of both; `accepted` counts only those that publish depths, `drafted` and `steps` are left out."""
        accepted = tuple(map(sum, zip_longest(self.accepted, other.accepted, fillvalue=0.0)))
        return PublishedAcceptance(self.tokens + other.tokens, self.verifications + other.verifications, accepted)

    @property
    def is_known(self) -> bool:
        """Whether there were verifications, and all numbers are finite."""
        return self.verifications > 0 and all(map(math.isfinite, (self.tokens, self.verifications, *self.accepted)))

    @property
    def rates(self) -> list[float]:
        """Acceptance rate given an accepted parent, by depth; [] if depths are not published."""
        counts = [self.verifications, *self.accepted]
        return [round(after / parent, 4) for parent, after in zip(counts, counts[1:], strict=False) if parent]

    @property
    def accepted_tokens(self) -> float:
        """Total number of accepted draft tokens."""
        return self.tokens - self.verifications

    def with_depths(self, counted: "PublishedAcceptance | None") -> "PublishedAcceptance":
        """With the acceptance by depth of the server's counters, unless they also counted other answers."""
        if self.accepted or counted is None or round(sum(counted.accepted)) != round(self.accepted_tokens):
            return self
        return replace(self, accepted=counted.accepted)

    @property
    def tau(self) -> float:
        return self.tokens / self.verifications if self.verifications else 0.0


def acceptance_of_answer(answer: Mapping[str, Any]) -> PublishedAcceptance | None:
    """The acceptance metrics in a chat completion (JSON); None without any."""
    for read in (_speculoos, _vllm, _llamacpp, _sglang, _tensorrt):
        try:
            result = read(answer)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
            continue
        if result.is_known:
            return result
    return None


def undrafted_answer(answer: Mapping[str, Any]) -> PublishedAcceptance | None:
    """The acceptance of an answer of llama.cpp for which no token was drafted. Such an answer has no `draft_n`. Neither
    have those of a server without a draft, so use it only for a server that drafted for other answers."""
    try:
        tokens = _count(answer["timings"]["predicted_n"]) - 1
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return PublishedAcceptance(tokens, tokens, drafted=0.0) if tokens > 0 else None


def scrape(endpoint: Endpoint) -> PublishedAcceptance | None:
    """The counters of an endpoint's first server, requested with its key and without redirects; None without any."""
    address = metrics_address(endpoint.urls[0])
    key = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    encrypted = address.lower().startswith("https:")  # loading the certificates takes longer than the request
    with httpx.Client(timeout=TIMEOUT, follow_redirects=False, headers=key, verify=encrypted) as client:
        return read_metrics(_text(client, address))


def metrics_address(url: str) -> str:
    """Address of the metrics of the server with base URL `url` (…/v1)."""
    parts = urlsplit(url)
    root = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc, f"{root}/metrics", "", ""))


def read_metrics(text: str) -> PublishedAcceptance | None:
    """The counters in Prometheus' text format since the server's start; None without any, and for invalid text."""
    values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values.setdefault(sample.name, []).append((sample.labels, sample.value))
    except (ValueError, KeyError, IndexError):
        return None
    prefix = next((prefix for prefix in COUNTERS if f"{prefix}drafts_total" in values), "")
    drafts, accepted = (values.get(f"{prefix}{name}_total") for name in ("drafts", "accepted_tokens"))
    if not drafts or not accepted:
        return None
    steps, tokens = (sum(value for _, value in samples) for samples in (drafts, accepted))
    by_depth: dict[int, float] = {}
    for labels, value in values.get(f"{prefix}accepted_tokens_per_pos_total", ()):
        if POSITION.fullmatch(position := labels.get("position", "")):
            by_depth[int(position)] = by_depth.get(int(position), 0.0) + value
    depths = range(max(by_depth, default=-1) + 1)
    return PublishedAcceptance(steps + tokens, steps, tuple(by_depth.get(depth, 0.0) for depth in depths))


def _text(client: httpx.Client, address: str) -> str:
    """The first MAX_BYTES bytes of a page, "" if it is unavailable."""
    page = bytearray()
    try:
        with client.stream("GET", address) as answer:
            if answer.status_code != 200:
                return ""
            for chunk in answer.iter_bytes():
                page += chunk
                if len(page) >= MAX_BYTES:
                    break
    except httpx.HTTPError:
        return ""
    return page[:MAX_BYTES].decode("utf-8", "replace")


def _speculoos(answer: Mapping[str, Any]) -> PublishedAcceptance:
    summary = answer["speculation_summary"]
    verifications, rates = _count(summary["verifications"]), summary.get("acceptance_by_depth") or ()
    accepted_count, accepted = verifications, []
    for rate in rates[:MAX_DEPTH]:  # relative to accepted parents (in trees: to those with children)
        accepted_count *= float(rate)
        accepted.append(accepted_count)
    return PublishedAcceptance(verifications * float(summary["mean_accepted_length"]), verifications, tuple(accepted))


def _vllm(answer: Mapping[str, Any]) -> PublishedAcceptance:
    result = answer["metrics"]["speculative_decoding"]
    verifications, accepted = _count(result["num_spec_steps"]), _count(result["num_accepted_draft_tokens"])
    drafted = _count(result["num_draft_tokens"]) if "num_draft_tokens" in result else None
    by_depth, steps = _by_depth(result.get("acceptance_histogram")), _vllm_steps(result)
    if steps is not None and (len(steps), sum(step.accepted for step in steps)) != (verifications, accepted):
        steps = None
    # vLLM counts only steps with draft tokens; n-gram drafts and batch-size schedules have others
    undrafted = max(_count((answer.get("usage") or {}).get("completion_tokens") or 0) - 1 - verifications - accepted, 0)
    verifications, steps = verifications + undrafted, None if undrafted else steps
    return PublishedAcceptance(verifications + accepted, verifications, by_depth, drafted, steps)


def _vllm_steps(result: Mapping[str, Any]) -> tuple[PublishedStep, ...] | None:
    """The lists of `--per-request-spec-decode-metrics detailed`; None for `summary` and for lists that do not match."""
    lists = result.get("per_step_accepted"), result.get("per_step_drafted")
    if not all(isinstance(each, list) and all(type(n) is int for n in each) for each in lists):
        return None
    if len(lists[0]) != len(lists[1]) or not all(0 <= a <= d for a, d in zip(*lists, strict=True)):
        return None
    return tuple(PublishedStep(*pair) for pair in zip(*lists, strict=True))


def _llamacpp(answer: Mapping[str, Any]) -> PublishedAcceptance:
    """Each token after the first is either an accepted draft token or the one that a verification adds."""
    timings = answer["timings"]
    tokens, accepted = _count(timings["predicted_n"]) - 1, _count(timings["draft_n_accepted"])
    return PublishedAcceptance(tokens, tokens - accepted, drafted=_count(timings["draft_n"]))


def _sglang(answer: Mapping[str, Any]) -> PublishedAcceptance:
    meta = answer["choices"][0]["meta_info"]
    tokens = meta.get("completion_tokens", answer["usage"]["completion_tokens"])
    return PublishedAcceptance(_count(tokens), _count(meta["spec_verify_ct"]))


def _tensorrt(answer: Mapping[str, Any]) -> PublishedAcceptance:
    tokens = _count(answer["usage"]["completion_tokens"])
    each = float(answer["choices"][0]["avg_decoded_tokens_per_iter"])
    return PublishedAcceptance(tokens, tokens / each if each > 0 else 0.0)


def _by_depth(histogram: Any) -> tuple[float, ...]:
    """Steps that accepted at least d tokens, from a histogram of accepted tokens (a list, or a dict by number)."""
    if isinstance(histogram, list):
        histogram = dict(enumerate(histogram))
    counts = {int(accepted): float(steps) for accepted, steps in (histogram or {}).items()}
    deepest = min(max(counts, default=0), MAX_DEPTH)
    return tuple(sum(steps for accepted, steps in counts.items() if accepted >= d) for d in range(1, deepest + 1))


def _count(value: Any) -> float:
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(value)
    return number
