"""Random numbers of an answer, a function of seed, row and turn only. Does not import torch."""

import hashlib
import random


def row_rng(seed: int, row_id: str, turn: int) -> random.Random:
    """Random generator of one answer, independent of batch, shard and resumes."""
    return random.Random(row_seed(seed, row_id, turn))


def row_seed(seed: int, row_id: str, turn: int) -> int:
    """64-bit seed of one answer."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{row_id}/{turn}".encode()).digest()[:8], "big")
