"""Tables in Markdown, as benchmarks print them, and their places in pages of docs. No torch."""

from collections.abc import Iterable, Mapping
from typing import Any


def row(cells: Iterable[Any]) -> str:
    """One line of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def table_lines(head: str, rows: Iterable[Iterable[Any]]) -> list[str]:
    """A table whose first line is `head`, as Markdown has it."""
    return [head, "| --- " * (head.count("|") - 1) + "|", *map(row, rows)]


def wishes(wanted: Mapping[str, bool], of: str = "") -> list[str]:
    """A line for each thing that was wanted: whether it holds."""
    return [f"Wanted{of}: {what}: {'yes' if met else 'NO'}." for what, met in wanted.items()]


def between(text: str, begin: str, end: str, figures: str) -> str:
    """`text` with `figures` in the place of what stood between its two marks."""
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{figures}\n{end}{rest.partition(end)[2]}"
