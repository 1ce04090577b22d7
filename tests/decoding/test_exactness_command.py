"""The exactness command: ties are counted and skipped, real differences fail, references are stored."""

import json

import pytest

from benchmarks import exactness
from benchmarks.exactness import TIE, Reference, compare, reference, verdict
from decoding.drafters import make_drafter
from decoding.target import Target
from tests.decoding.conftest import ids_of


@pytest.fixture
def expected(base):
    return reference(base, ids_of(base, "the quick brown fox"), 16)


def outcome(base, expected):
    target = Target(base, 64)
    return compare(target, make_drafter(target, None, {"drafter": "ngram"}), expected)


def altered(expected, at, gap, ours):
    """The reference as if transformers had chosen its second-best token at index `at`; it ends there."""
    tokens = [*expected.tokens[:at], expected.second[at]]
    second = [*expected.second[:at], expected.tokens[at] if ours else 0]
    return Reference(expected.prompt, tokens, second, [*expected.gaps[:at], gap])


def test_equal_output_has_no_ties_and_no_difference(base, expected):
    assert outcome(base, expected) == exactness.ExactnessOutcome(16)


def test_a_tie_is_recorded_and_the_comparison_goes_on(base, expected):
    tied = altered(expected, 5, TIE / 2, ours=True)
    rest = reference(base, tied.prompt + tied.tokens, 6)
    longer = Reference(tied.prompt, tied.tokens + rest.tokens, tied.second + rest.second, tied.gaps + rest.gaps)
    assert outcome(base, longer) == exactness.ExactnessOutcome(12, ties=[5])


@pytest.mark.parametrize(("gap", "ours"), [(2 * TIE, True), (TIE / 2, False)])
def test_a_wide_gap_or_a_third_token_is_a_difference(base, expected, gap, ours):
    result = outcome(base, altered(expected, 5, gap, ours))
    assert result.difference["at"] == 5 and result.difference["ours"] == expected.tokens[5]
    assert not verdict([result])["exact"]


def test_too_many_ties_fail():
    assert verdict([exactness.ExactnessOutcome(4999, ties=[7])])["exact"]
    assert not verdict([exactness.ExactnessOutcome(4999, ties=[7, 9])])["exact"]


def test_the_command_compares_and_stores_references(tmp_path, base, capsys):
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in ("the lazy dog", "1 2 3")))
    store, report = tmp_path / "kept", tmp_path / "out.json"
    arguments = ["--model", str(base.path), "--questions", str(questions), "--max-tokens", "12"]
    arguments += ["--store", str(store), "--context", "128", "--json", str(report)]
    assert exactness.main(arguments) == 0
    stored = sorted(store.rglob("*.json"))
    assert len(stored) == 2 and "none: exact" in capsys.readouterr().out
    result = json.loads(report.read_text())
    assert result["ngram"]["prompts"] == 2 and result["ngram"]["differences"] == []
    broken = json.loads(stored[0].read_text())
    stored[0].write_text(json.dumps(broken | {"tokens": [(t + 1) % 320 for t in broken["tokens"]]}))
    assert exactness.main(arguments) == 1, "kept references are used"
