"""Drafting options as text: parsing, formatting, and which methods support which options."""

from typing import Any

import pytest

from models.methods import METHODS
from models.methods.trees import drafting_text, editable_text, fits, parse
from speculoos.errors import BadInput


@pytest.mark.parametrize(
    ("text", "drafting"),
    [
        ("own", {}),
        ("", {}),
        ("ngram", {"drafter": "ngram"}),
        ("chain 3", {"tree": [[0, 0, 0]]}),
        ("chain:2", {"tree": [[0, 0]]}),
        ("tree 2x1", {"tree": [[0, 0], [1, 0]]}),
        ('{"depth": 4, "top_k": 8}', {"depth": 4, "top_k": 8}),
        ("depth 4, top_k 8, sample true", {"depth": 4, "top_k": 8, "sample": True}),
        ("ngram, depth 3", {"drafter": "ngram", "depth": 3}),
        ("[[0], [0, 0], [1]]", {"tree": [[0], [0, 0], [1]]}),
        ("[(0,), (0, 1)]", {"tree": [[0], [0, 1]]}),
    ],
)
def test_text_is_parsed(text: str, drafting: dict[str, Any]) -> None:
    assert parse(text) == drafting
    if not drafting_text(drafting).startswith("tree of"):
        assert parse(drafting_text(drafting)) == drafting


@pytest.mark.parametrize("drafting", [{}, {"tree": [[0], [0, 0], [1], [2], [0, 1]]}, {"depth": 4, "top_k": 8}])
def test_editable_text_is_complete(drafting: dict[str, Any]) -> None:
    assert parse(editable_text(drafting)) == drafting


def test_different_trees_have_different_texts() -> None:
    assert drafting_text({"tree": [[0], [0, 0], [0, 0, 0]]}) == "chain 3" == drafting_text({"tree": [[0, 0, 0]]})
    assert drafting_text({"tree": [[0], [1], [0, 0], [1, 0]]}) == "tree 2x1"
    first, second = ({"tree": tree} for tree in ([[0], [0, 0], [1]], [[0], [0, 1], [1]]))
    assert drafting_text(first) != drafting_text(second) and drafting_text(first).startswith("tree of 3 choices")
    assert drafting_text({"depth": 3, "drafter": "ngram"}) == "ngram, depth 3"
    assert drafting_text({"tree": "no tree"}).startswith("tree of ?")


def test_a_huge_tree_is_described_at_once() -> None:
    for tree in ([[10**12]], [[99_999, 99_999, 99_999]], [[float("inf")]]):
        assert drafting_text({"tree": tree}).startswith("tree of 1 choices")


@pytest.mark.parametrize("text", ["chain 0", "chain", "tree 0x2", "tree 99x99", "[1]", "{", "fast", "depth", "depth x"])
def test_what_is_no_tree_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("chain 33", "33 deep"),
        ("tree 99x1x1x1x1x1x1x1x1x1x1x1", "1,188 nodes"),
        ("tree " + "x".join(["1"] * 3000), "3,000 deep"),
        (str([[0] * 40]), "path of 40 ranks"),
        (str([[0] * 20_000]), "longer than"),
        ('{"tree": ' + str([[0] * 5000]) + "}", "path of 5,000 ranks"),
        ("[" * 300, "expected own"),
        ("[[2000]]", "more than 1024"),
        ("[[0], []]", "one or more ranks"),
        ("[[0], [-1]]", "one or more ranks"),
        ("[[true]]", "one or more ranks"),
        ("[]", "empty tree"),
        ("[[0.5]]", "one or more ranks"),
        ("[__import__('os')]", "expected own"),
        ("[{[]}]", "expected own"),
        ("[" + "1if 1else " * 1900 + "1]", "expected own"),
    ],
)
def test_a_tree_that_would_fill_memory_is_refused_in_one_sentence(text: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason) as error:
        parse(text)
    assert len(str(error.value)) < 400 and "\n" not in str(error.value)


def test_only_what_can_be_drafted_fits() -> None:
    def fit(drafting: dict[str, Any], method: str) -> bool:
        return fits(drafting, method, METHODS[method].drafting if method else ())

    assert all(fit({}, method) and fit({"tree": [[0]]}, method) for method in METHODS)
    assert fit({}, "") and fit({"drafter": "ngram", "depth": 2}, "") and not fit({"tree": [[0]]}, "")
    assert fit({"depth": 3, "top_k": 2}, "eagle3") and not fit({"depth": 3, "top_k": 2}, "medusa")
    assert not fit({"drafter": "ngram"}, "medusa") and fit({"drafter": "medusa"}, "medusa")
