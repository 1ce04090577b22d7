"""Labels that use a term of the field show its definition."""

import re
from pathlib import Path

import pytest

from app.theme import head
from app.widgets import elements
from app.widgets.charts import line_chart
from app.widgets.picker import table
from app.widgets.terms import LABELS, TERMS, label
from app.widgets.text import safe
from tests.app.test_shell import NASTY

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
TAU = f'title="{safe(TERMS["tau"])}"'


def test_definitions_are_those_of_the_glossary() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    assert all(definition in text for definition in TERMS.values()) and {*LABELS.values(), "step"} == set(TERMS)


@pytest.mark.parametrize(
    ("text", "key", "marked"),
    [
        ("τ", "tau", "τ"),
        ("Mean accepted length (τ)", "tau", "Mean accepted length"),
        ("Expected mean accepted length (τ)", "tau", "mean accepted length"),
        ("Acceptance by depth, held out", "acceptance", "Acceptance by depth"),
        ("Draft vocabulary coverage", "draft-vocabulary", "Draft vocabulary"),
        ("Speedup", "speedup", "Speedup"),
        ("Vs. baseline", "speedup", "Vs. baseline"),
        ("Same output", "lossless", "Same output"),
    ],
)
def test_a_label_that_uses_a_term_defines_it(text: str, key: str, marked: str) -> None:
    html = label(text)
    assert f'<abbr class="sp-term" title="{safe(TERMS[key])}" data-term="{key}">{marked}</abbr>' in html
    assert re.sub(r"<[^>]+>", "", html) == text


@pytest.mark.parametrize("text", ["Name", "Trees of a kind", "explained", "Plainly", "Learning rate", ""])
def test_a_label_without_one_is_as_it_was(text: str) -> None:
    assert label(text) == text


@pytest.mark.parametrize("text", NASTY)
def test_what_a_user_wrote_never_becomes_markup(text: str) -> None:
    for html in (label(text), label(f"{text} τ {text}")):
        inner = html.replace(f'<abbr class="sp-term" {TAU} data-term="tau">', "").replace("</abbr>", "")
        assert not set(inner) & set('<>${}`"\\'), inner


def test_tiles_tables_facts_charts_and_scripts_define_their_labels() -> None:
    assert TAU in elements.tiles([("Mean accepted length (τ)", 2, "")]) and TAU in table(["τ"], [["2"]], "Drafts")
    assert TAU in elements.facts([("τ", 2)]) and TAU in line_chart("τ", {"a": [(0, 1), (1, 2)]})
    assert '"tau": ["Mean accepted length (\\u03c4)", "Tokens that one verification yields' in head()
