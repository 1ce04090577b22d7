"""Step costs by amount of work, as estimates use them. No torch."""

from collections.abc import Mapping


def non_decreasing(costs: Mapping[int, float]) -> dict[int, float]:
    """Make milliseconds by amount of work non-decreasing: each becomes the minimum of itself and all larger ones.
    Interference only adds time, so the time of more work is an upper bound for less work. With such costs no expected
    speedup exceeds the expected τ."""
    least, result = float("inf"), {}
    for amount in sorted(costs, reverse=True):
        least = min(least, costs[amount])
        result[amount] = least
    return dict(sorted(result.items()))


def interpolate(points: Mapping[int, float], at: int) -> float:
    """Piecewise linear interpolation of `points`, constant beyond the ends."""
    low = max((n for n in points if n <= at), default=min(points))
    high = min((n for n in points if n >= at), default=max(points))
    weight = (at - low) / (high - low) if high > low else 0.0
    return points[low] + weight * (points[high] - points[low])
