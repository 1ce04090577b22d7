"""Random numbers that belong to an answer: to its seed, row and turn, whatever else is made beside it. No torch."""

import hashlib
import random


def row_numbers(seed: int, row_id: str, turn: int) -> random.Random:
    """Random numbers for one answer: the same whatever batch or shard the row is in, and after a resume."""
    return random.Random(row_seed(seed, row_id, turn))


def row_seed(seed: int, row_id: str, turn: int) -> int:
    """A 64-bit seed for one answer of one row."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{row_id}/{turn}".encode()).digest()[:8], "big")
