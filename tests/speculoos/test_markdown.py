"""Untrusted text in Markdown is shown as plain text, checked with a renderer that lets HTML pass."""

import re

import pytest
from markdown_it import MarkdownIt

from speculoos.markdown import block_quotation, code_span, escape_text, fenced_code_block, one_line, yaml_scalar

NASTY = (
    "plain words",
    "back`tick`s and ``two`` ```three```",
    "<script>alert(1)</script> <img src=x onerror=alert(1)> &lt;b&gt;",
    "[a link](javascript:alert(1)) ![img](x) [ref]: <x>",
    "# no heading\n## nor this\n```sh\nrm -rf /\n```\n---\n===",
    "a | b | c",
    "**bold** _sloped_ snake_case __init__ ~~gone~~",
    "$(touch x) `touch y` $E = mc^2$ \\$",
    "- item\n1. first\n> quoted\n    indented\n+ more",
    "\u202egnp.exe\u200b tab\there",
    "`",
    "trailing\\",
)
PLAIN = {"p", "/p", "h1", "/h1", "blockquote", "/blockquote", "br", "table", "/table", "thead", "/thead", "tbody"}
PLAIN |= {"/tbody", "tr", "/tr", "th", "/th", "td", "/td", "code", "/code", "pre", "/pre"}


def rendered(markdown: str) -> str:
    return MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough").render(markdown)


def tags(html: str) -> set[str]:
    return {tag.split()[0] for tag in re.findall(r"<([^>]*)>", html)}


def visible_text(html: str) -> str:
    """The text that a reader sees."""
    text = re.sub(r"<[^>]*>", "", html)
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        text = text.replace(entity, character)
    return " ".join(text.split())


@pytest.mark.parametrize("value", NASTY)
def test_every_character_is_shown_as_it_is(value: str) -> None:
    heading = rendered(f"# Heads for {escape_text(value)}, here\n")
    assert tags(heading) == {"h1", "/h1"} and visible_text(heading) == f"Heads for {one_line(value)}, here"
    span = rendered(f"From {code_span(value)}.\n")
    assert tags(span) == {"p", "/p", "code", "/code"} and visible_text(span) == f"From {one_line(value)}."
    cells = rendered(f"| | |\n| --- | --- |\n| {escape_text(value)} | end |\n")
    assert tags(cells) <= PLAIN and cells.count("<td>") == 2 and one_line(value) in visible_text(cells)


@pytest.mark.parametrize("value", NASTY)
def test_notes_are_one_quotation_of_plain_lines(value: str) -> None:
    html = rendered(f"before\n\n{block_quotation(value)}\n\nafter\n")
    assert tags(html) <= {"p", "/p", "blockquote", "/blockquote"} and html.count("<blockquote>") == 1
    lines = [one_line(line) for line in value.strip().splitlines()]
    assert visible_text(html) == " ".join(["before", *filter(None, " ".join(lines).split()), "after"])


@pytest.mark.parametrize("value", NASTY)
def test_a_block_ends_where_its_text_ends(value: str) -> None:
    html = rendered(f"{fenced_code_block(value, 'sh')}\nafter\n")
    assert html.count("<pre>") == 1 and html.endswith("<p>after</p>\n") and tags(html) <= PLAIN


@pytest.mark.parametrize("value", ["mit", "./heads", "no", "1.0", "a: b", "# x", 'quo"te', "", "org/tiny", "new\nline"])
def test_a_yaml_scalar_is_read_as_the_text_it_is(value: str) -> None:
    import yaml

    assert yaml.safe_load(f"key: {yaml_scalar(value)}\nother: 1\n") == {"key": value, "other": 1}
