"""Results of plans as jobs store them, with made-up figures."""

from typing import Any

BATCHES = (1, 2, 4, 8, 16)


def cell(speedup: float) -> dict[str, float]:
    """Measurements of a shape at one batch size."""
    return {"step_ms": 10.0, "draft_ms": 2.0, "tokens_per_second": 50 * speedup, "speedup": speedup}


def shape(name: str, kind: str, *speedups: float, batches: tuple[int, ...] = (1, 8)) -> dict[str, Any]:
    """A draft shape with a speedup for each batch size."""
    by_batch = {str(batch): cell(value) for batch, value in zip(batches, speedups, strict=True)}
    return {"name": name, "kind": kind, "nodes": 4, "depth": 3, "tau": 1.9, "options": {}, "by_batch": by_batch}


def cut(layers: int, token_ms: float, needed: float | None, *speedups: float) -> dict[str, Any]:
    """A standalone draft of `layers` layers."""
    shares = {share: {"speedup": value, "depth": 2} for share, value in zip(("0.5", "0.9"), speedups, strict=True)}
    return {"layers": layers, "token_ms": token_ms, "needed_acceptance": needed, "speedups": shares}


def wide_plan() -> dict[str, Any]:
    """The result of a plan of the size that the page's form requests."""
    chains = [shape(f"chain {n}", "chain", *_decreasing(1.1 + n / 10), batches=BATCHES) for n in range(1, 6)]
    trees = [shape(f"tree of {n}", "tree", *_decreasing(1.2 + n / 25), batches=BATCHES) for n in (4, 6, 8, 12, 16)]
    return {
        "plain": shape("plain", "plain", *[1.0] * len(BATCHES), batches=BATCHES),
        "shapes": [*chains, *trees],
        "best": {"1": "tree of 16", "8": "plain"},
        "stops_at": 8,
        "standalone": [cut(2, 1.5, 0.42, 1.1, 2.2), cut(4, 3.1, 0.66, 0.8, 1.5), cut(8, 9.0, None, 0.6, 0.9)],
        "acceptance": {"chain": [0.6], "verifications": 77},
        "machine": {"processor": "A processor", "threads": 2},
        "basis": "measured here",
        "verdict": "One request at a time: tree of 16, 1.84 × the baseline. At batch sizes of 8 or more, plain decoding"
        " is faster.",
    }


def _decreasing(best: float) -> list[float]:
    return [round(best / (1 + 0.18 * index), 2) for index in range(len(BATCHES))]
