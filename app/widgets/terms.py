"""Labels that use a term of the field show its definition as a tooltip. docs/glossary.md says more about each."""

import re
from functools import cache

from app.i18n import N_, language, t
from app.widgets.text import safe, tag

TERMS = {
    "tau": N_("Tokens that one verification yields, including the base model's own token; plain decoding has τ = 1."),
    "acceptance": N_("Share of proposed tokens that were accepted; by depth, of those whose parent was accepted"),
    "speedup": N_("Speed relative to plain decoding in the same engine, on the same machine and prompts."),
    "draft-vocabulary": N_("The tokens that a draft can propose."),
    "lossless": N_("The output is the base model's: the same tokens at temperature 0, the same distribution above it."),
    "tree": N_("Several candidates per position, each with its own continuation, all verified in one forward pass."),
    "loss-mask": N_("Which tokens of a conversation a draft is trained on: the responses, not the prompts."),
    "interval": N_(
        "“1.38 – 1.47× (95 %)” is a bootstrap confidence interval: the questions and steps that were measured "
        "are resampled many times, and 95 % of the results fall within it."
    ),
    "baseline": N_("The base model without a draft (plain decoding), which every speedup is relative to."),
    "step": N_("A round of speculative decoding: the draft proposes tokens, the base model verifies and keeps some."),
}
LABELS = {
    **dict.fromkeys((N_("mean accepted length"), N_("tokens per verification"), N_("accepted length"), "τ"), "tau"),
    **dict.fromkeys((N_("acceptance"), N_("acceptance by depth"), N_("acceptance rate")), "acceptance"),
    **dict.fromkeys((N_("speedup"), N_("vs. baseline")), "speedup"),
    **dict.fromkeys((N_("draft vocabulary"), N_("coverage")), "draft-vocabulary"),
    **dict.fromkeys((N_("lossless"), N_("same output")), "lossless"),
    **dict.fromkeys((N_("tree"), N_("drafted tree"), N_("tree of candidates")), "tree"),
    **dict.fromkeys((N_("loss mask"), N_("mask source")), "loss-mask"),
    **{N_("interval"): "interval", N_("baseline"): "baseline", N_("plain"): "baseline"},
}


def definitions() -> dict[str, list[str]]:
    """Name and definition of each term, for the scripts (static/dom.js)."""
    names = {key: t(term) for term, key in reversed([*LABELS.items(), (N_("step"), "step")])}
    names["tau"] += " (τ)"
    return {key: [names[key][:1].upper() + names[key][1:], t(text)] for key, text in TERMS.items()}


def label(text: object) -> str:
    """A label as HTML; the first term in it has its definition as a tooltip."""
    text, (pattern, keys) = str(text), _terms(language())
    if not (match := pattern.search(text)):
        return safe(text)
    key = keys[match[0].lower()]
    term = tag("abbr", safe(match[0]), class_="sp-term", title=t(TERMS[key]), data_term=key)
    return safe(text[: match.start()]) + term + safe(text[match.end() :])


@cache
def _terms(_language: str) -> tuple[re.Pattern[str], dict[str, str]]:
    """(pattern that finds the longest term, term → key) in the current language. Only Latin letters beside a word make
    it part of another one."""
    keys = {t(term).lower(): key for term, key in LABELS.items()}
    longest_first = "|".join(map(re.escape, sorted(keys, key=len, reverse=True)))
    return re.compile(rf"(?<![a-zß-ÿ])({longest_first})(?![a-zß-ÿ])", re.IGNORECASE), keys
