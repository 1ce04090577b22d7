"""Breakdown of an evaluation: accepted lengths, τ by position, drafted tokens by kind, prompts with the lowest τ. Pure
functions of the row."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from app.widgets.intervals import bars
from app.widgets.picker import table
from app.widgets.text import safe, tag
from tracking.replays import is_replay
from tracking.tables import Evaluation

SHOWN = 12
"""Maximum number of prompts in the table."""
LONGEST = 120
"""Maximum number of characters of a prompt in the table."""
HOW = "“Show its steps” runs the prompt again in the Playground and shows p and q of every candidate."
ANSWERED_HERE = (
    "“Show its steps” runs the prompt on the local engine in the Playground. The response may differ from the "
    "evaluated one."
)
OF_SERVERS = "By position and by kind of token: unknown, because servers do not report which tokens were drafted."
ONE_BY_ONE = "Worst prompts: unknown, because this server reports no statistics of single responses."
BEFORE = (
    "By position, by kind of token and worst prompts: not recorded by the version that measured this. Measure again."
)


def parts(row: Evaluation, again: bool = True) -> str:
    """All parts, and why some are missing; "" without drafting. `again`: prompts have a button that the evaluation's
    page handles."""
    result = row.result or {}
    drawn = lengths(result) + by_position(result) + by_class(result)
    why = tag("p", safe(reason), class_="sp-hint") if (reason := missing(row)) else ""
    return (tag("div", drawn, class_="sp-charts") if drawn else "") + worst(row, again) + why


def missing(row: Evaluation) -> str:
    result = row.result or {}
    if not result.get("mean_accepted_length"):
        return ""
    if row.source:
        return OF_SERVERS if result.get("per_prompt") else f"{OF_SERVERS} {ONE_BY_ONE}"
    return BEFORE if row.checkpoint_id and not result.get("by_position") else ""


def lengths(result: Mapping[str, Any]) -> str:
    counts = [count for count in result.get("lengths") or () if isinstance(count, int)]
    total = sum(counts)
    rows = [
        (f"{n} token{'s' if n > 1 else ''}", count / total, f"{count / total:.0%}")
        for n, count in enumerate(counts, 1)
        if total
    ]
    return bars("Tokens per step", rows, f"{total:,} steps; τ is their mean.")


def by_position(result: Mapping[str, Any]) -> str:
    spans = result.get("by_position") or []
    if not spans:
        return ""
    most = max(span["tau"] for span in spans)
    ends = [*(later["from"] for _, later in pairwise(spans)), None]
    rows = [
        (f"{span['from']} – {end - 1}" if end else f"from {span['from']}", span["tau"] / most, f"{span['tau']:.2f}")
        for span, end in zip(spans, ends, strict=True)
    ]
    return bars("τ by position in the response", rows, "Number of response tokens before the step.")


def by_class(result: Mapping[str, Any]) -> str:
    """Share of drafted tokens by kind of token."""
    rows = []
    for each in result.get("by_class") or ():
        share = each["drafted"] / each["tokens"] if each["tokens"] else 0.0
        rows.append((f"{each['class']} ({each['tokens']:,})", share, f"{share:.0%}"))
    return bars(
        "Drafted, by kind of token",
        rows,
        "Share of the generated tokens of a kind that came from accepted draft tokens.",
    )


def worst(row: Evaluation, again: bool = True) -> str:
    """The prompts with the lowest τ, with buttons to show their steps."""
    prompts = (row.result or {}).get("per_prompt") or []
    if not prompts:
        return ""
    columns = ["Prompt", "τ", "Tokens", "Steps", ""]
    has_buttons = again and row.base_id is not None
    rows = [_prompt(number, prompt, has_buttons) for number, prompt in enumerate(prompts[:SHOWN])]
    how = ANSWERED_HERE if row.source or is_replay(row.result) else HOW
    head = tag("h3", "Worst prompts")
    head += tag("p", safe(how), class_="sp-hint") if any(cells[-1] for cells in rows) else ""
    return tag("section", head + table(columns, rows, "Worst prompts", wide_first=True, named=columns[1:4]))


def _prompt(number: int, prompt: Mapping[str, Any], has_button: bool) -> list[str]:
    messages = prompt.get("messages") or ()
    text = str(messages[-1].get("content", "")) if messages else ""
    turn = f"turn {prompt['turn'] + 1}" if prompt.get("turn") else ""
    named = " · ".join(filter(None, [str(prompt.get("id") or ""), str(prompt.get("category") or ""), turn]))
    shown = f"{text[:LONGEST].strip()}…" if len(text) > LONGEST else text
    name = tag("div", safe(shown or named)) + (tag("span", safe(named), class_="sp-row-note") if shown else "")
    button = tag(
        "button",
        "Show its steps",
        type="button",
        class_="sp-small-button sp-one-line",
        data_steps=number,
        aria_label=f"Show its steps: prompt {number + 1}",
    )
    numbers = [f"{prompt.get('tau', 0):.2f}", f"{prompt.get('tokens', 0):,}", f"{prompt.get('steps', 0):,}"]
    return [name, *map(safe, numbers), button if messages and has_button else ""]
