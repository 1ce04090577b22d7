"""Steps added up. Mean accepted length τ has one definition, here, for every screen and file. Plain Python only.

τ = tokens emitted per verification. The prefill and the token it yields are left out, and so is a step whose tokens
EOS, a stop text, the length limit or the end of the cache cut short.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from decoding.step import Step


@dataclass(frozen=True)
class Summary:
    """What a generation (or many) came to. Times are milliseconds."""

    tokens: int
    """New tokens, the prefill's included."""
    verifications: int
    """Steps that count towards τ."""
    mean_accepted_length: float
    """τ; 1.0 for plain decoding, 0.0 where no step counted."""
    acceptance_by_depth: tuple[float, ...]
    """At depth d: of the counted steps whose accepted parent at depth d - 1 had drafted children, the share that had
    one accepted."""
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
        """Prefill included, model loading not."""
        return self.tokens / self.ms_total * 1e3 if self.ms_total else 0.0

    def to_json(self) -> dict[str, Any]:
        times = {"ms_total": round(self.ms_total, 3), "tokens_per_second": round(self.tokens_per_second, 3)}
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(self).items()} | times


def summarize(steps: Iterable[Step]) -> Summary:
    """Add up the steps of one generation, or of many one after another (`finish` is then the last one's)."""
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
    """By depth, then by rank: where the parent was accepted and had its child of this rank drafted, how often that was
    the accepted one. None where none was drafted; ranks from `ranks` on are left out."""
    tried: Counter[tuple[int, int]] = Counter()
    taken: Counter[tuple[int, int]] = Counter()
    for step in (step for step in steps if step.counted):
        drafted, on_path = step.drafted, {-1, *step.accepted}
        children = [n for n, parent in enumerate(drafted.parents) if parent in on_path]
        places = {n: (drafted.depths[n], drafted.ranks[n]) for n in children if drafted.ranks[n] < ranks}
        tried.update(places.values())
        taken.update(place for n, place in places.items() if n in on_path)
    depths = range(1, max((depth for depth, _ in tried), default=0) + 1)
    widest = {depth: max(rank for at, rank in tried if at == depth) for depth in depths}
    return tuple(
        tuple(_share(taken[depth, rank], tried[depth, rank]) for rank in range(widest[depth] + 1)) for depth in depths
    )


def _share(taken: int, tried: int) -> float | None:
    return taken / tried if tried else None


def acceptance_by_depth(steps: Iterable[Step]) -> tuple[float, ...]:
    """Share of accepted among tried, by depth (index 0 is depth 1), conditional on the parent being accepted."""
    tried: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for step in steps:
        has_children = set(step.drafted.parents)
        accepted.update(range(1, len(step.accepted) + 1))
        path = (-1, *step.accepted)
        tried.update(depth for depth, node in enumerate(path, 1) if node in has_children)
    return tuple(accepted[d] / tried[d] for d in range(1, max(tried, default=0) + 1))
