"""Labels that use a term of the field show its definition as a tooltip. docs/glossary.md says more about each."""

import re

from app.widgets.text import safe, tag

TERMS = {
    "tau": "Tokens that one verification yields, including the base model's own token; plain decoding has τ = 1.",
    "acceptance": "The share of proposed tokens that were accepted. By depth it counts only tokens whose "
    "parent was accepted",
    "speedup": "Speed relative to plain decoding in the same engine, on the same machine and prompts.",
    "draft-vocabulary": "The tokens that a draft can propose.",
    "lossless": "The output is that of the base model alone: the same tokens at temperature 0, tokens of the same "
    "distribution above it.",
    "tree": "Several candidates per position, each with its own continuation, all verified in the same forward pass.",
    "loss-mask": "Which tokens of a conversation a draft is trained on: the responses, not the prompts.",
    "interval": "“1.38 – 1.47× (95 %)” is a bootstrap confidence interval: the questions and steps that were measured "
    "are resampled many times, and 95 % of the results fall within it.",
    "baseline": "The base model without a draft (plain decoding), which every speedup is relative to.",
    "step": "One round of speculative decoding: the draft proposes tokens, the base model verifies them, "
    "some are kept.",
}
"""Definitions by key; static/dom.js uses them too."""
LABELS = {
    **dict.fromkeys(("mean accepted length", "tokens per verification", "accepted length", "τ"), "tau"),
    **dict.fromkeys(("acceptance", "acceptance by depth", "acceptance rate"), "acceptance"),
    **dict.fromkeys(("speedup", "vs. baseline"), "speedup"),
    **dict.fromkeys(("draft vocabulary", "coverage"), "draft-vocabulary"),
    **dict.fromkeys(("lossless", "same output"), "lossless"),
    **dict.fromkeys(("tree", "drafted tree", "tree of candidates"), "tree"),
    **dict.fromkeys(("loss mask", "mask source"), "loss-mask"),
    **{"interval": "interval", "plain": "baseline", "baseline": "baseline"},
}
TERM = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, sorted(LABELS, key=len, reverse=True)))})(?!\w)", re.IGNORECASE)


def label(text: object) -> str:
    """A label as HTML; the first term in it has its definition as a tooltip."""
    text = str(text)
    if not (match := TERM.search(text)):
        return safe(text)
    key = LABELS[match[0].lower()]
    term = tag("abbr", safe(match[0]), class_="sp-term", title=TERMS[key], data_term=key)
    return safe(text[: match.start()]) + term + safe(text[match.end() :])
