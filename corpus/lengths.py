"""Statistics of a finished data set: lengths of rows, and the number of truncated answers."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

from corpus.importing import length_bucket
from corpus.shards import read_lines

COUNTED = 100_000
"""Maximum rows counted: enough for the distribution, and fast for data sets of millions of rows."""


def count_lengths(folder: str | Path) -> dict[str, Any]:
    """`lengths` ([max tokens, rows] by powers of two; empty if rows have no token ids) and `cut_answers`."""
    lengths, cut = Counter[int](), 0
    for _, _, line in islice(read_lines(folder), COUNTED):
        row = json.loads(line)
        cut += list(row.get("finish") or ()).count("length")
        if ids := row.get("token_ids"):
            lengths[length_bucket(len(ids))] += 1
    return {"lengths": sorted(lengths.items()), "cut_answers": cut}
