"""Labels that use a word of the field (app/words.py) lead to what it means."""

import re

from app.widgets.text import safe, tag
from app.words import BY_SLUG, WORDS

PAGE = "/words"
LINKED = ("tau", "acceptance", "speedup", "draft-vocabulary", "lossless", "tree", "loss-mask", "interval", "plain")
"""Words whose labels are linked; others would be links in every line."""
SLUGS = {said.lower(): word.slug for word in WORDS if word.slug in LINKED for said in (word.name, *word.said)}
SAID = re.compile("|".join(rf"(?<!\w){re.escape(said)}(?!\w)" for said in sorted(SLUGS, key=len, reverse=True)), re.I)


def term(slug: str, text: str = "") -> str:
    """A link to the word `slug` around `text`, its name by default."""
    return tag("a", safe(text or BY_SLUG[slug].name), href=f"{PAGE}#{slug}", class_="sp-term")


def label(text: object) -> str:
    """A label as HTML; the first word of the field in it is a link."""
    text = str(text)
    found = SAID.search(text)
    if not found:
        return safe(text)
    return safe(text[: found.start()]) + term(SLUGS[found[0].lower()], found[0]) + safe(text[found.end() :])
