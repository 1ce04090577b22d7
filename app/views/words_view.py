"""The words of the field as HTML: a stored answer of the starter with one of its steps opened, and the meanings."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from app.widgets.elements import tiles
from app.widgets.terms import term
from app.widgets.text import safe, tag
from app.words import Word

EXAMPLE = Path(__file__).parent.parent / "example.json"
"""Made by `python -m benchmarks.example`: question, model, trace records, figures."""
SHOWN = 14
"""Nodes of the opened step's tree that are shown."""


@cache
def example() -> dict[str, Any]:
    """The stored answer."""
    return json.loads(EXAMPLE.read_text())


def meanings(words: Iterable[Word]) -> str:
    """Every word with its anchor."""
    rows = (tag("dt", safe(word.name), id=word.slug) + tag("dd", safe(word.text)) for word in words)
    return tag("dl", "".join(rows), class_="sp-words", data_sp="words")


def picture(shown: Mapping[str, Any]) -> str:
    """Question, answer with its marks, what the marks say, one step's tree."""
    records = shown["records"]
    answer = tag("div", "".join(map(_step, records)), class_="tr-tokens")
    asked = tag("p", safe(shown["prompt"]), class_="sp-question")
    said = tag("p", safe(f"{shown['model']}, at temperature 0"), class_="sp-row-note")
    left = asked + tag("div", answer, class_="sp-answer") + said + _tiles(shown)
    return tag("div", tag("div", left, class_="sp-stack") + opened(best_step(records)), class_="sp-word-picture")


def _tiles(shown: Mapping[str, Any]) -> str:
    figures = shown["figures"]
    shares = " · ".join(f"{share:.0%}" for share in figures["acceptance_by_depth"][:4])
    return tiles(
        [
            ("Tokens", figures["tokens"], f"in {figures['verifications']} verifications"),
            ("Mean accepted length τ", f"{figures['mean_accepted_length']:.2f}", "tokens a verification"),
            ("Acceptance by depth", shares, "depth 1, 2, 3 …"),
        ]
    )


def _step(record: Mapping[str, Any]) -> str:
    tokens = "".join(_token(token) for token in record["tokens"] if token["text"])
    return tag("span", tokens, class_=f"tr-step sp-{record['kind']}")


def _token(token: Mapping[str, Any]) -> str:
    core = tag("span", safe(token["text"]), class_="tr-core")
    return tag("span", core, class_=f"tr-token sp-{token['origin']}", data_depth=token["depth"])


def best_step(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The step that tells most: most tokens kept, and a wrong guess beside them."""
    return max(records, key=lambda r: (len(r["accepted"]), len(r["draft"]["tokens"]) > len(r["accepted"])))


def opened(record: Mapping[str, Any]) -> str:
    """A step's tree: kept guesses, others, the base's own token; each with its word."""
    draft, kept = record["draft"], set(record["accepted"])
    nodes = shown_nodes(draft, kept)
    rows = "".join(_node(draft, i, i in kept) for i in nodes)
    own = "".join(_token(token) for token in record["tokens"] if token["origin"] != "draft")
    words = safe("One ") + term("step", "step") + safe(", opened: its ") + term("tree", "tree")
    head = tag("h3", words)
    left_out = len(draft["tokens"]) - len(nodes)
    more = tag("p", safe(f"… and {left_out} more candidates"), class_="sp-hint") if left_out else ""
    counted = tag("p", safe(f"{len(kept)} of {len(draft['tokens'])} candidates were kept."))
    last = tag("p", term("own-token", "Own token") + safe(" after them: ") + own)
    tree = tag("ol", rows, class_="tr-tree", tabindex="0", aria_label="Drafted tree")
    return tag("section", head + counted + tree + more + last, class_="sp-panel sp-detail", aria_label="One step")


def shown_nodes(draft: Mapping[str, Any], kept: set[int]) -> list[int]:
    """At most SHOWN nodes in depth-first order: those that were kept, then the likeliest, each with its parents."""
    chosen: set[int] = set()
    for node in sorted(range(len(draft["tokens"])), key=lambda i: (i not in kept, -_path(draft, i))):
        line = set(_line(draft, node))
        if len(chosen | line) <= SHOWN:
            chosen |= line
    return [node for node in depth_first(draft) if node in chosen]


def depth_first(draft: Mapping[str, Any], parent: int = -1) -> Iterable[int]:
    """Nodes as they stand in the tree, best sibling first."""
    children = [i for i, above in enumerate(draft["parents"]) if above == parent]
    for node in sorted(children, key=lambda i: draft["ranks"][i]):
        yield node
        yield from depth_first(draft, node)


def _line(draft: Mapping[str, Any], node: int) -> Iterable[int]:
    while node >= 0:
        yield node
        node = draft["parents"][node]


def _path(draft: Mapping[str, Any], node: int) -> float:
    return sum(draft["logprobs"][i] for i in _line(draft, node))


def _node(draft: Mapping[str, Any], node: int, kept: bool) -> str:
    share = math.exp(draft["logprobs"][node])
    state = "accepted" if kept else "rejected"
    mark = tag("span", "✓" if kept else "×", class_="tr-node-mark", role="img", aria_label=state)
    text = tag("span", safe(visible(draft["texts"][node])), class_="tr-node-text")
    bar = tag("span", tag("span", class_="sp-bar-fill", style=f"width:{min(share, 1):.0%}"), class_="sp-bar")
    chance = tag("span", bar + tag("span", f"{share:.0%}", class_="sp-bar-value"), class_="tr-prob")
    cells = mark + text + tag("span", chance, class_="tr-probs")
    return tag("li", cells, class_=f"tr-node sp-{state}", style=f"--depth:{draft['depths'][node] - 1}")


def visible(text: str) -> str:
    """A token with its outer space and line breaks to be seen."""
    shown = text.replace("\n", "⏎").replace("\t", "⇥")
    head, tail = shown[: len(shown) - len(shown.lstrip(" "))], shown[len(shown.rstrip(" ")) :]
    return "␣" * len(head) + shown.strip(" ") + ("␣" * len(tail) if shown.strip(" ") else "")
