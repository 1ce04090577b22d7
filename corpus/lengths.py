"""How long the rows of a data set are, and how many answers a limit cut: counted from its shards when it is whole."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from corpus.importing import bucket
from corpus.shards import read_lines

COUNTED = 100_000
"""Rows that are counted: enough to see how they are spread, soon done in a set of millions."""


def count_lengths(folder: str | Path) -> dict[str, Any]:
    """`lengths` ([most tokens, rows] by powers of two; empty where rows hold no token ids) and `cut_answers`."""
    lengths, cut = Counter[int](), 0
    for _, _, line in islice(read_lines(folder), COUNTED):
        row = json.loads(line)
        cut += list(row.get("finish") or ()).count("length")
        if ids := row.get("token_ids"):
            lengths[bucket(len(ids))] += 1
    return {"lengths": sorted(lengths.items()), "cut_answers": cut}
