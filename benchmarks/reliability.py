"""Writes the figures of `make drills` as tables into docs/reliability.md, between its two marks.

python -m benchmarks.reliability drills.json
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.report import replace_between, table_lines

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- figures: written by benchmarks/reliability.py -->", "<!-- end of figures -->"
MADE = (
    "; by `make drills`, each drill on the day and under the load (average of the last minute, before and after) of "
    "its row."
)
WHEN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}, [0-9.]+ to [0-9.]+(?=\)| \|)")
"""Date and load of a row without a machine."""
LOAD = "load"
OUTCOME = ("kills", "jobs", "lost", "doubled")
"""Columns of the first table; other counts of a drill are written in its column `also`."""
APART = (*OUTCOME, "date", "seconds", "load", "recovery")
"""Keys with their own columns or tables."""
SPREAD = ("count", "median", "p95", "max")
MEMORY = ("warm_mb", "end_mb")


def page(text: str, figures: dict[str, Any]) -> str:
    """The page's text with these figures; figures of other drills stay."""
    return replace_between(text, BEGIN, END, tables(figures, text.partition(BEGIN)[2].partition(END)[0].strip()))


def tables(figures: dict[str, Any], before: str = "") -> str:
    """Machine, counts of each drill, recovery times, and load. Rows of other drills are kept from `before`, with their
    machine if it differs."""
    machine, drills = figures["machine"], figures["drills"]
    here = f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}"
    there, made, _ = before.partition(MADE)
    if made and there != here:
        before = WHEN.sub(lambda when: f"{when[0]}; {there}", before)
    lines = [
        here + MADE,
        "",
        *kept(before, drills, counted({name: one for name, one in drills.items() if name != LOAD})),
        "",
        *kept(before, drills, recovered(drills)),
    ]
    load = under_load(drills[LOAD]) if LOAD in drills else ["".join(before.partition("Load (")[1:])]
    return "\n".join([*lines, "", *load]).strip()


def kept(before: str, drills: dict[str, Any], table: list[str]) -> list[str]:
    """The table, starting with the rows of other drills in `before`."""
    head, rule, *rows = table
    old = before.partition(f"{head}\n{rule}\n")[2].partition("\n\n")[0].splitlines()
    fresh = {words(name) for name in drills}
    return [head, rule, *(row for row in old if drill_of(row) not in fresh), *rows]


def drill_of(row: str) -> str:
    """The drill of a row: its first cell, or the text in parentheses there."""
    return row.split(" | ")[0].removeprefix("| ").rpartition("(")[2].removesuffix(")")


def counted(drills: dict[str, Any]) -> list[str]:
    """Table with one row per drill."""
    rows = []
    for name, one in drills.items():
        also = [f"{words(key)} {plain(value)}" for key, value in one.items() if key not in APART]
        when = f"{one['date']}, {one['load'][0]} to {one['load'][1]}"
        rows.append([words(name), *(one.get(key, "") for key in OUTCOME), "; ".join(also), f"{one['seconds']} s", when])
    return table_lines("| drill | kills | jobs | lost | doubled | also | took | date, load |", rows)


def recovered(drills: dict[str, Any]) -> list[str]:
    """Table of recovery seconds by failed part."""
    rows = [
        [f"{part} ({words(name)})", *(taken.get(key, "") for key in SPREAD)]
        for name, one in drills.items()
        for part, taken in one.get("recovery", {}).items()
    ]
    return table_lines("| seconds to recover | times | median | 95 % | most |", rows)


def under_load(one: dict[str, Any]) -> list[str]:
    """Text and tables of the three parts of the load drill."""
    busy, polling, queue = one["busy"], one["polling"], one["queue"]
    streams = busy["streams"]
    acted = {name: taken for name, taken in busy["actions_ms"].items() if name != "poll"}
    return [
        f"Load ({one['date']}, {one['load'][0]} to {one['load'][1]}): {busy['clients']} clients, "
        f"{streams['at_once']} streams for {busy['seconds']} s. {streams['runs']} answers with "
        f"{streams['tokens']} tokens were read, {streams['dropped']} otherwise than stored; 95 % of page actions "
        f"took less than {busy['action_p95_ms']:.0f} ms. {polling['pages']} idle Jobs pages "
        f"({polling['polls_per_second']} polls a second) cost {polling['cpu_share']['web']:.0%} of a core.",
        "",
        *table_lines(
            "| action under load, ms | times | median | 95 % | most |",
            ([name, *(taken[key] for key in SPREAD)] for name, taken in acted.items()),
        ),
        "",
        *table_lines(
            "| process | cores used | MB after a quarter | MB at the end |",
            ([name, busy["cpu_share"][name], *(mb[key] for key in MEMORY)] for name, mb in busy["memory"].items()),
        ),
        "",
        *table_lines(
            f"| with {queue['jobs']} queued jobs, ms | median | most |",
            ([name, taken["median"], taken["max"]] for name, taken in queue["open_ms"].items()),
        ),
    ]


def words(name: str) -> str:
    return name.replace("_", " ")


def plain(value: Any) -> str:
    """Text of a figure, of a spread, or of several by name."""
    if isinstance(value, dict) and "median" in value:
        return f"{value['median']} (95 % {value.get('p95', '')}, most {value['max']})"
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(one)}" for name, one in value.items())
    return str(value)


def main() -> None:
    figures = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))  # the file DRILLS_OUT named
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")


if __name__ == "__main__":
    main()
