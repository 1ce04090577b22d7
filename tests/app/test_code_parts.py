"""Code of answers in colours: parts that are the code, whatever is written and however much of it."""

import time

import pytest
from pygments.lexers import find_lexer_class_by_name

from app import code_parts, rendered

HOSTILE = ("a.", "<a ", "/*", '"""', "<<A\n", "\\")
"""Of what lexers take long: without an end, over and over."""


def kinds(code: str, language: str) -> list[tuple[str, str]]:
    """(what it is, text) of each part."""
    parts = code_parts.parts(code, language)
    return [(part["kind"], *part["children"]) if isinstance(part, dict) else ("", part) for part in parts]


def whole(code: str, language: str) -> str:
    return "".join(text for _, text in kinds(code, language))


def test_a_part_says_what_it_is_and_carries_its_text_as_it_was_written() -> None:
    assert kinds("def f():  # <b>&\n\treturn 'é' * 2\r\n", "Python") == [
        *[("keyword", "def"), ("", " "), ("name", "f"), ("", "():  "), ("comment", "# <b>&"), ("", "\n\t")],
        *[("keyword", "return"), ("", " "), ("string", "'é'"), ("", " * "), ("number", "2"), ("", "\r\n")],
    ]
    assert kinds("-old\n+new\n", "diff") == [("removed", "-old"), ("", "\n"), ("added", "+new"), ("", "\n")]
    assert ("name", '"key"') in kinds('{"key": 1}', "json")


@pytest.mark.parametrize("language", ["", "no-such-language", 'a"b<script>', "../py", "text"])
def test_a_language_that_is_not_known_stays_plain(language: str) -> None:
    assert code_parts.parts("if x: <b>", language) == ["if x: <b>"]


def test_a_block_that_a_limit_cut_has_colours_and_no_end() -> None:
    (block,) = rendered.nodes("```js\nconst a = 'half")
    assert block["children"][0] == {"tag": "span", "kind": "keyword", "children": ["const"]}
    assert "".join(c if isinstance(c, str) else c["children"][0] for c in block["children"]) == "const a = 'half"


def test_what_is_beyond_the_length_is_one_part() -> None:
    code = "x = 1\n" * code_parts.LONGEST
    found = kinds(code, "python")
    assert whole(code, "python") == code and found[0:2] == [("", "x = "), ("number", "1")]
    assert len(found[-1][1]) > 4 * code_parts.LONGEST


LEXERS = {find_lexer_class_by_name(language).name: language for language in sorted(code_parts.LANGUAGES)}


@pytest.mark.parametrize("lexer", sorted(LEXERS))
def test_a_lexer_ends_soon_and_loses_nothing(lexer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is that of the real time, though each text is given less here."""
    language, bound = LEXERS[lexer], 8 * code_parts.SECONDS
    monkeypatch.setattr(code_parts, "SECONDS", code_parts.SECONDS / 10)
    for text in HOSTILE:
        code, began = text * (code_parts.LONGEST // 2), time.thread_time()
        assert whole(code, language) == code
        assert time.thread_time() - began < bound, text
