"""The learning rate over a run, as a pure function of how much of the run is over. No torch."""

import math


def lr_factor(progress: float, warmup: float, schedule: str) -> float:
    """Factor for the highest learning rate at `progress` (0…1) of the run; linear warm-up for its first `warmup`.

    cosine: (1 + cos(π·r)) / 2, linear: 1 − r, constant: 1, with r the part of the rest that is over.
    """
    if progress < warmup:
        return progress / warmup
    rest = min((progress - warmup) / max(1 - warmup, 1e-9), 1.0)
    return {"cosine": (1 + math.cos(math.pi * rest)) / 2, "linear": 1 - rest, "constant": 1.0}[schedule]
