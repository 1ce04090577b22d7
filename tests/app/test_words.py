"""The words of the field: each once, each linked one known, each shown with the real answer."""

import re

import pytest

from app.views import words_view
from app.widgets import elements, terms
from app.widgets.charts import line_chart
from app.widgets.picker import table
from app.words import BY_SLUG, WORDS
from tests.app.test_shell import NASTY


def test_every_word_has_an_anchor_of_its_own_and_a_few_sentences() -> None:
    html = words_view.meanings(WORDS)
    anchors = re.findall(r'<dt id="([a-z-]+)">', html)
    assert anchors == [word.slug for word in WORDS] and len(set(anchors)) == len(anchors) > 15
    assert all(40 < len(word.text) < 420 and word.text.endswith(".") for word in WORDS)


def test_every_linked_word_is_on_the_page() -> None:
    assert set(terms.LINKED) <= set(BY_SLUG)


@pytest.mark.parametrize(
    ("text", "slug", "linked"),
    [
        ("τ", "tau", "τ"),
        ("Mean accepted length τ", "tau", "Mean accepted length"),
        ("Expected mean accepted length τ", "tau", "mean accepted length"),
        ("Acceptance by depth, held out", "acceptance", "Acceptance by depth"),
        ("Answer tokens a draft vocabulary covers, by its size", "draft-vocabulary", "draft vocabulary"),
        ("Speedup", "speedup", "Speedup"),
        ("Against plain", "speedup", "Against plain"),
        ("Same output", "lossless", "Same output"),
    ],
)
def test_a_label_that_uses_a_word_leads_to_it(text: str, slug: str, linked: str) -> None:
    html = terms.label(text)
    assert f'<a href="/words#{slug}" class="sp-term">{linked}</a>' in html
    assert re.sub(r"<[^>]+>", "", html) == text


@pytest.mark.parametrize("text", ["Name", "Trees of a kind", "explained", "Plainly", "Learning rate", ""])
def test_a_label_without_one_is_as_it_was(text: str) -> None:
    assert terms.label(text) == text


@pytest.mark.parametrize("text", NASTY)
def test_what_a_user_wrote_never_becomes_markup(text: str) -> None:
    for html in (terms.label(text), terms.label(f"{text} τ {text}"), terms.term("tau", text)):
        inner = re.sub(r'<a href="/words#tau" class="sp-term">|</a>', "", html)
        assert not set(inner) & set('<>${}`"\\'), inner


def test_tiles_tables_facts_and_charts_link_their_labels() -> None:
    link = 'href="/words#tau"'
    assert link in elements.tile("Mean accepted length τ", 2) and link in table(["τ"], [["2"]], "Drafts")
    assert link in elements.facts([("τ", 2)]) and link in line_chart("τ", {"a": [(0, 1), (1, 2)]})


def test_the_picture_is_a_real_answer_of_the_starter() -> None:
    shown = words_view.example()
    text = "".join(token["text"] for record in shown["records"] for token in record["tokens"])
    assert shown["model"] == "starter@starter" and len(text) > 100
    counted = [record for record in shown["records"] if record["counted"]]
    tokens = sum(len(record["tokens"]) for record in counted)
    assert shown["figures"]["mean_accepted_length"] == pytest.approx(tokens / len(counted), abs=0.001)
    html = words_view.picture(shown)
    assert html.count("tr-step sp-verify") == len([r for r in shown["records"] if r["kind"] == "verify"])


def test_the_opened_step_shows_what_was_kept_with_its_parents() -> None:
    record = words_view.best_step(words_view.example()["records"])
    draft, kept = record["draft"], set(record["accepted"])
    assert sorted(words_view.depth_first(draft)) == list(range(len(draft["tokens"])))
    nodes = words_view.shown_nodes(draft, kept)
    assert kept and kept <= set(nodes) and len(nodes) <= words_view.SHOWN
    assert all(draft["parents"][node] in {-1, *nodes} for node in nodes)
    html = words_view.opened(record)
    assert html.count("sp-accepted") == len(kept) and html.count("<li") == len(nodes)


@pytest.mark.parametrize(
    ("text", "shown"), [(" fly", "␣fly"), ("a\n", "a⏎"), ("  ", "␣␣"), ("x ", "x␣"), ("a b", "a b")]
)
def test_spaces_of_single_tokens_can_be_seen(text: str, shown: str) -> None:
    assert words_view.visible(text) == shown
