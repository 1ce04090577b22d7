"""Markdown tables of benchmarks, and their insertion into documentation pages. Does not import torch."""

from collections.abc import Iterable, Mapping
from typing import Any


def row(cells: Iterable[Any]) -> str:
    """One line of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def table_lines(head: str, rows: Iterable[Iterable[Any]]) -> list[str]:
    """Lines of a Markdown table with the header line `head`."""
    return [head, "| --- " * (head.count("|") - 1) + "|", *map(row, rows)]


def goal_lines(wanted: Mapping[str, bool], of: str = "") -> list[str]:
    """One line per goal: whether it is met."""
    return [f"Wanted{of}: {what}: {'yes' if met else 'NO'}." for what, met in wanted.items()]


def replace_between(text: str, begin: str, end: str, figures: str) -> str:
    """`text` with `figures` as the new content between the two marks."""
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{figures}\n{end}{rest.partition(end)[2]}"
