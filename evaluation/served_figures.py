"""Figures of an evaluated server: totals over its answers, with intervals from a bootstrap over them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evaluation.breakdown import PromptMetrics, worst_first
from evaluation.estimate import DRAWS, INTERVAL_PERCENTILES, SEED
from evaluation.published import PublishedAcceptance

TOLERANCE = 0.01
"""Maximum relative difference between a server's token counts by depth and its total."""


@dataclass
class ServedAnswer:
    """One prompt: tokens and seconds with and (if requested) without a draft."""

    category: str
    tokens: int
    seconds: float
    acceptance: PublishedAcceptance | None
    acceptance_source: str = ""
    """Source of `acceptance`: `answers` or `counters`."""
    if_undrafted: PublishedAcceptance | None = None
    """The acceptance if other answers show that the server drafts."""
    plain_tokens: int = 0
    plain_seconds: float = 0.0
    same_as_plain: bool | None = None
    id: str = ""
    turn: int = 0
    messages: list[dict[str, str]] = field(default_factory=list)


def fill_undrafted(answers: Sequence[ServedAnswer]) -> None:
    """Count the answers without drafted tokens of a server that publishes drafts with its other answers."""
    published = [answer.acceptance for answer in answers if answer.acceptance_source == "answers"]
    accepted = (0.0,) if any(one.accepted for one in published if one) else ()
    for answer in answers:
        if published and answer.acceptance is None and answer.if_undrafted:
            answer.acceptance, answer.acceptance_source = replace(answer.if_undrafted, accepted=accepted), "answers"


def breakdown(answers: Sequence[ServedAnswer]) -> dict[str, Any]:
    """Accepted lengths and the prompts with the lowest τ, if the server publishes them per answer. Drafted tokens are
    not published."""
    with_acceptance = [answer for answer in answers if answer.acceptance]
    prompts = [
        PromptMetrics(
            {"id": answer.id, "turn": answer.turn, "category": answer.category},
            answer.acceptance.tau,
            answer.tokens,
            round(answer.acceptance.verifications),
            answer.messages,
        )
        for answer in with_acceptance
    ]
    worst = {"per_prompt": worst_first(prompts)} if prompts else {}
    lengths = _lengths([answer.acceptance for answer in with_acceptance])
    return worst | ({"lengths": lengths} if lengths else {})


def _lengths(acceptances: Sequence[PublishedAcceptance]) -> list[int]:
    """Number of verifications that emitted 1, 2, … tokens: differences of the accepted counts of consecutive depths. []
    if depths are not published or inconsistent with the number of tokens (possible for trees)."""
    if not acceptances or not all(one.accepted for one in acceptances):
        return []
    total = sum(acceptances, PublishedAcceptance())
    accepted = [total.verifications, *total.accepted]
    counts = [round(this - deeper) for this, deeper in zip(accepted, [*accepted[1:], 0.0], strict=True)]
    emitted = sum(n * count for n, count in enumerate(counts, 1))
    return counts if min(counts) >= 0 and abs(emitted - total.tokens) <= TOLERANCE * total.tokens else []


def identical(answers: Sequence[ServedAnswer]) -> bool | None:
    compared = [answer.same_as_plain for answer in answers if answer.same_as_plain is not None]
    return all(compared) if compared else None


def metrics(answers: Sequence[ServedAnswer]) -> dict[str, Any]:
    """Totals over prompts, with intervals from a bootstrap over prompts."""
    counts = np.array([(a.tokens, a.verifications) for a in (b.acceptance for b in answers) if a]).reshape(-1, 2)
    times = np.array([(a.tokens, a.seconds, a.plain_tokens, a.plain_seconds) for a in answers], dtype=float)
    tokens, seconds, plain_tokens, plain_seconds = times.sum(0)
    compared = bool(plain_tokens and tokens and plain_seconds and seconds)
    return {
        "mean_accepted_length": _ratio(*counts.sum(0)) if len(counts) else None,
        "acceptance_by_depth": by_depth(answers),
        "mean_accepted_length_interval": _interval(counts, lambda totals: totals[:, 0] / totals[:, 1]),
        "speedup": _ratio(tokens / seconds, plain_tokens / plain_seconds) if compared else None,
        "speedup_interval": _interval(times if compared else times[:0], _speedups),
        "tokens_per_second": _ratio(tokens, seconds),
        "plain_tokens_per_second": _ratio(plain_tokens, plain_seconds) if compared else None,
        "prompts": len(answers),
        "tokens": int(tokens),
    }


def _ratio(numerator: float, denominator: float) -> float | None:
    return round(float(numerator / denominator), 4) if denominator else None


def _speedups(totals: np.ndarray) -> np.ndarray:
    """[draws] from [draws, (tokens, seconds, plain tokens, plain seconds)]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return (totals[:, 0] / totals[:, 1]) / (totals[:, 2] / totals[:, 3])


def _interval(rows: np.ndarray, statistic: Any) -> list[float] | None:
    """95 % bootstrap interval of `statistic` over prompts; None with fewer than two."""
    if len(rows) < 2:
        return None
    draws = np.random.default_rng(SEED).integers(len(rows), size=(DRAWS, len(rows)))
    values = statistic(rows[draws].sum(1))
    values = values[np.isfinite(values)]
    return [round(float(value), 4) for value in np.percentile(values, INTERVAL_PERCENTILES)] if len(values) else None


def by_depth(answers: Sequence[ServedAnswer]) -> list[float]:
    """Acceptance rate given an accepted parent, by depth."""
    return sum((a.acceptance for a in answers if a.acceptance and a.acceptance.accepted), PublishedAcceptance()).rates
