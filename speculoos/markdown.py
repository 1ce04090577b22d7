"""Escapes user text for Markdown, so that it cannot create headings, links, HTML, formulas or end code blocks.

Follows CommonMark (https://spec.commonmark.org: backslash escapes, code spans, fences) and GitHub's tables and math.
"""

import json
import re
from typing import Any

SIGNS = re.compile(r"[\\`*{}\[\]<>#|~$&]|(?<![^\W_])_|_(?![^\W_])")
"""Characters with a meaning at any position; underscores within words have none."""
START = re.compile(r"^(\d*)([-+=.)])")  # line starts that create a list, a rule or a heading
YAML_KEYWORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")  # not strings in YAML


def one_line(value: Any) -> str:
    """The text on one line with single spaces, without non-printable characters (some change the text direction)."""
    return "".join(sign for sign in " ".join(str(value).split()) if sign.isprintable())


def escape_text(value: Any) -> str:
    """One line of escaped text, also for a table cell or a heading."""
    return SIGNS.sub(lambda match: f"\\{match[0]}", one_line(value))


def block_quotation(value: Any) -> str:
    lines = (START.sub(r"\1\\\2", escape_text(line), count=1) for line in str(value).strip().splitlines())
    return "\n".join(f"> {line}".rstrip() for line in lines)


def code_span(value: Any) -> str:
    line = one_line(value)
    fence = "`" * (_longest_run(line) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def markdown_section(title: str, content: Any) -> list[str]:
    """Lines of a heading with a table or one line of text; [] without content."""
    if not content:
        return []
    return [f"## {title}\n", markdown_table(content) if isinstance(content, dict) else escape_text(content) + "\n"]


def markdown_table(rows: dict[str, Any]) -> str:
    """A table with two columns; rows with an empty value are omitted."""
    lines = [
        f"| {escape_text(key)} | {_cell(value)} |" for key, value in rows.items() if value not in (None, "", {}, [])
    ]
    return "\n".join(["| | |\n| --- | --- |", *lines, ""])


def _cell(value: Any) -> str:
    """Lists and dicts as JSON, formatted as code unless a `|` would end the cell."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if not isinstance(value, dict | list):
        return escape_text(value)
    line = json.dumps(value, ensure_ascii=False)
    return escape_text(line) if "|" in line else code_span(line)


def fenced_code_block(content: str, language: str = "") -> str:
    """A fenced code block whose fence is longer than any run of backticks in it."""
    fence = "`" * max(_longest_run(content) + 1, 3)
    return f"{fence}{language}\n{content.rstrip(chr(10))}\n{fence}\n"


def yaml_scalar(value: str) -> str:
    """A string as a YAML scalar: plain if YAML parses it as a string, else JSON, which is valid YAML."""
    plain = re.fullmatch(r"(?:\./)?[A-Za-z][\w./-]*", value, re.ASCII) and value.lower() not in YAML_KEYWORDS
    return value if plain else json.dumps(value)


def _longest_run(content: str) -> int:
    return max((len(run) for run in re.findall("`+", content)), default=0)
