"""Statistics of steps. This is the only definition of the mean accepted length τ. Plain Python only.

τ = tokens emitted per verification. It does not count the prefill and its token, or a step that was truncated by EOS, a
stop text or the length limit.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from decoding.step import Step


@dataclass(frozen=True)
class Summary:
    """Summary of one or more generations. Times are milliseconds."""

    tokens: int  # new tokens, including the prefill's
    verifications: int  # number of steps that count towards τ
    mean_accepted_length: float  # τ; 1.0 for plain decoding, 0.0 if no step counts
    acceptance_by_depth: tuple[float, ...]
    """At depth d: of the counted steps whose accepted node at depth d - 1 had drafted children, the share with an
    accepted child."""
    tokens_by_origin: dict[str, int]
    finish: str | None
    ms_prefill: float
    ms_draft: float
    ms_verify: float
    ms_other: float

    @property
    def ms_total(self) -> float:
        return self.ms_prefill + self.ms_draft + self.ms_verify + self.ms_other

    @property
    def tokens_per_second(self) -> float:
        """Includes the prefill, but not model loading."""
        return self.tokens / self.ms_total * 1e3 if self.ms_total else 0.0

    def to_json(self) -> dict[str, Any]:
        times = {"ms_total": round(self.ms_total, 3), "tokens_per_second": round(self.tokens_per_second, 3)}
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(self).items()} | times


def summarize(steps: Iterable[Step]) -> Summary:
    """Summarize the steps of one or more consecutive generations (`finish` is that of the last)."""
    steps = list(steps)
    counted = [s for s in steps if s.counted]
    emitted = sum(len(s.tokens) for s in counted)
    decoding = [s for s in steps if s.kind != "prefill"]
    return Summary(
        tokens=sum(len(s.tokens) for s in steps),
        verifications=len(counted),
        mean_accepted_length=emitted / len(counted) if counted else 0.0,
        acceptance_by_depth=acceptance_by_depth(counted),
        tokens_by_origin=dict(Counter(t.origin for s in steps for t in s.tokens)),
        finish=steps[-1].finish if steps else None,
        ms_prefill=sum(s.ms_draft + s.ms_verify + s.ms_other for s in steps if s.kind == "prefill"),
        ms_draft=sum(s.ms_draft for s in decoding),
        ms_verify=sum(s.ms_verify for s in decoding),
        ms_other=sum(s.ms_other for s in decoding),
    )


def acceptance_by_rank(steps: Iterable[Step], ranks: int = 8) -> tuple[tuple[float | None, ...], ...]:
    """By depth, then by rank: the share of accepted parents with a drafted child of this rank that was accepted."""
    tried: Counter[tuple[int, int]] = Counter()
    accepted: Counter[tuple[int, int]] = Counter()
    for step in (step for step in steps if step.counted):
        draft, on_path = step.draft_record, {-1, *step.accepted}
        for node, parent in enumerate(draft.parents):
            if parent in on_path and draft.ranks[node] < ranks:
                key = draft.depths[node], draft.ranks[node]
                tried[key] += 1
                accepted[key] += node in on_path
    widths = {depth: 1 + max(rank for at, rank in tried if at == depth) for depth, _ in sorted(tried)}
    return tuple(
        tuple(accepted[depth, r] / tried[depth, r] if tried[depth, r] else None for r in range(width))
        for depth, width in widths.items()
    )


def acceptance_by_depth(steps: Iterable[Step]) -> tuple[float, ...]:
    """Acceptance rate by depth (index 0 is depth 1), given that the parent was accepted."""
    tried: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for step in steps:
        has_children = set(step.draft_record.parents)
        accepted.update(range(1, len(step.accepted) + 1))
        path = (-1, *step.accepted)
        tried.update(depth for depth, node in enumerate(path, 1) if node in has_children)
    return tuple(accepted[d] / tried[d] for d in range(1, max(tried, default=0) + 1))
