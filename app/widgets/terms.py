"""Links from technical terms in labels to their entries in the glossary (app/words.py)."""

import re

from app.widgets.text import safe, tag
from app.words import BY_SLUG, WORDS

PAGE = "/words"
LINKED = ("tau", "acceptance", "speedup", "draft-vocabulary", "lossless", "tree", "loss-mask", "interval", "plain")
"""Terms that are linked in labels; more would put a link into every line."""
SLUGS = {name.lower(): word.slug for word in WORDS if word.slug in LINKED for name in (word.name, *word.said)}
TERMS = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in sorted(SLUGS, key=len, reverse=True)), re.I)


def term(slug: str, text: str = "") -> str:
    """A link to the glossary entry `slug`; `text` defaults to its name."""
    return tag("a", safe(text or BY_SLUG[slug].name), href=f"{PAGE}#{slug}", class_="sp-term")


def label(text: object) -> str:
    """A label as HTML; the first technical term in it is a link."""
    text = str(text)
    match = TERMS.search(text)
    if not match:
        return safe(text)
    return safe(text[: match.start()]) + term(SLUGS[match[0].lower()], match[0]) + safe(text[match.end() :])
