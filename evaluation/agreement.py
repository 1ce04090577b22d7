"""Whether a draft drafts in a server as in this engine: acceptance by position, τ and texts of two evaluations on the
same questions. No torch."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

TOLERANCE = 0.02
"""Differences of an acceptance rate up to this are never significant: kernels round differently."""
Z = 1.96
CAUSES = (
    "Likely causes: another chat template, hidden states of other layers (off by one), another vocabulary map, or "
    "weights in another precision."
)


def agreement(here: Mapping[str, Any], there: Mapping[str, Any], server: str) -> dict[str, Any]:
    """Compare results of `evaluation.acceptance.evaluate` (here) and `evaluation.served.evaluate_served` (there;
    `server` is its name and version). A rate is the share of verifications that accepted the draft token at a
    position. `agrees` is None if the server publishes no acceptance; `verdict` is a sentence."""
    positions = _positions(here, there)
    taus = [result.get("mean_accepted_length") for result in (here, there)]
    agrees: bool | None = all(each["agrees"] for each in positions) if positions else _same_tau(here, there)
    result = {
        "server": server,
        "positions": positions,
        "tau": dict(zip(("here", "there"), taus, strict=True)),
        "tokens_per_second": _speeds(here, there),
        "identical_to_plain": {"here": here.get("identical_to_plain"), "there": there.get("identical_to_plain")},
        "prompts": there.get("prompts"),
        "agrees": agrees,
    }
    return {**result, "verdict": _verdict(result)}


def _positions(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[dict[str, Any]]:
    rates = [_rates(result) for result in (here, there)]
    steps = [_steps(result) for result in (here, there)]
    if not all(rates) or not all(steps):
        return []
    positions = []
    for position, (ours, theirs) in enumerate(zip(*rates, strict=False), 1):
        most = max(TOLERANCE, _half_width(ours, theirs, *steps))
        agrees = abs(ours - theirs) <= most
        positions.append(
            {
                "position": position,
                "here": round(ours, 4),
                "there": round(theirs, 4),
                "tolerance": round(most, 4),
                "agrees": agrees,
            }
        )
    return positions


def _rates(result: Mapping[str, Any]) -> list[float]:
    """Accepted tokens by position per verification, from the rates given an accepted parent."""
    rates, share = [], 1.0
    for rate in result.get("acceptance_by_depth") or ():
        share *= rate
        rates.append(share)
    return rates


def _steps(result: Mapping[str, Any]) -> float:
    """Number of verifications."""
    if lengths := result.get("lengths"):
        return float(sum(lengths))
    tau = result.get("mean_accepted_length")
    return (result.get("tokens") or 0) / tau if tau else 0.0


def _half_width(ours: float, theirs: float, steps: float, their_steps: float) -> float:
    """Half of the 95 % interval of a difference of two shares (normal approximation). The texts are mostly the same, so
    it is wider than needed."""
    share = (ours * steps + theirs * their_steps) / (steps + their_steps)
    return Z * math.sqrt(share * (1 - share) * (1 / steps + 1 / their_steps))


def _same_tau(here: Mapping[str, Any], there: Mapping[str, Any]) -> bool | None:
    """For a server that publishes only totals: whether the intervals of τ overlap."""
    ours, theirs = (result.get("mean_accepted_length_interval") for result in (here, there))
    if not ours or not theirs:
        return None
    return ours[0] - TOLERANCE <= theirs[1] and theirs[0] - TOLERANCE <= ours[1]


def _speeds(here: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, Any]:
    names = ("tokens_per_second", "plain_tokens_per_second")
    return {where: {name: result.get(name) for name in names} for where, result in (("here", here), ("there", there))}


def _verdict(result: Mapping[str, Any]) -> str:
    server, tau = result["server"], result["tau"]
    if result["agrees"] is None:
        return f"{server} does not publish its acceptance, so it cannot be compared."
    if not (tau["there"] or 0) > 1:
        return f"{server} accepted no draft token, but τ is {tau['here']:.2f} in this engine. {CAUSES}"
    figures = f"τ {tau['there']:.2f} in the server, {tau['here']:.2f} in this engine"
    if not result["agrees"]:
        return f"Acceptance in {server} differs from this engine: {figures}. {CAUSES}"
    return f"Acceptance in {server} matches this engine: {figures}{_texts(result['identical_to_plain'])}."


def _texts(identical: Mapping[str, Any]) -> str:
    same = identical["there"]
    return (
        ""
        if same is None
        else "; texts equal those without the draft"
        if same
        else "; some texts differ from those without it"
    )


def chain(tokens: int) -> list[list[int]]:
    """The tree of a chain of `tokens` draft tokens, as servers draft."""
    return [[0] * depth for depth in range(1, tokens + 1)]


def positions_text(positions: Sequence[Mapping[str, Any]]) -> str:
    """`position 1: 0.43 in this engine, 0.42 in the server; …`."""
    return "; ".join(
        f"position {p['position']}: {p['here']:.2f} in this engine, {p['there']:.2f} in the server" for p in positions
    )
