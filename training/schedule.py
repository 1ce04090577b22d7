"""Learning rate schedules as pure functions of the completed fraction of the run. Does not import torch."""

import math


def lr_factor(progress: float, warmup: float, schedule: str) -> float:
    """Factor of the peak learning rate at `progress` (0…1) of the run; linear warm-up over the fraction `warmup`.

    cosine: (1 + cos(π·r)) / 2, linear: 1 − r, constant: 1, with r the progress after the warm-up (0…1).
    """
    if progress < warmup:
        return progress / warmup
    rest = min((progress - warmup) / max(1 - warmup, 1e-9), 1.0)
    return {"cosine": (1 + math.cos(math.pi * rest)) / 2, "linear": 1 - rest, "constant": 1.0}[schedule]
