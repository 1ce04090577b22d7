"""Text of people and of files as Markdown that shows it and does nothing else: no heading, link, HTML, formula or end
of a code block comes out of a name. Rules: CommonMark (https://spec.commonmark.org, backslash escapes, code spans,
fences) and GitHub's tables and formulas.
"""

import json
import re
from typing import Any

SIGNS = re.compile(r"[\\`*{}\[\]<>#|~$&]|(?<![^\W_])_|_(?![^\W_])")
"""What means something wherever it stands; an underscore within a word means nothing."""
START = re.compile(r"^(\d*)([-+=.)])")
"""What makes a list, a rule or a heading at the beginning of a line."""
WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
"""What YAML takes for something else than a text."""


def one_line(value: Any) -> str:
    """Its words with single spaces, without signs that cannot be seen (they may turn the direction of reading)."""
    return "".join(sign for sign in " ".join(str(value).split()) if sign.isprintable())


def text(value: Any) -> str:
    """One line of words, also for a cell of a table or a heading."""
    return SIGNS.sub(lambda found: f"\\{found[0]}", one_line(value))


def quotation(value: Any) -> str:
    """Several lines of words, as a block quotation."""
    lines = (START.sub(r"\1\\\2", text(line), count=1) for line in str(value).strip().splitlines())
    return "\n".join(f"> {line}".rstrip() for line in lines)


def code(value: Any) -> str:
    """One line as a code span."""
    line = one_line(value)
    fence = "`" * (_longest_run(line) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def section(title: str, content: Any) -> list[str]:
    """A heading with a table, or with a line of words; nothing where there is no content."""
    if not content:
        return []
    return [f"## {title}\n", table(content) if isinstance(content, dict) else text(content) + "\n"]


def table(rows: dict[str, Any]) -> str:
    """Two columns; rows whose value is empty are left out."""
    lines = [f"| {text(key)} | {_cell(value)} |" for key, value in rows.items() if value not in (None, "", {}, [])]
    return "\n".join(["| | |\n| --- | --- |", *lines, ""])


def _cell(value: Any) -> str:
    """Lists and objects as JSON, as code where no bar would end the cell."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if not isinstance(value, dict | list):
        return text(value)
    line = json.dumps(value, ensure_ascii=False)
    return text(line) if "|" in line else code(line)


def block(content: str, language: str = "") -> str:
    """Lines as a code block, which ends where they end."""
    fence = "`" * max(_longest_run(content) + 1, 3)
    return f"{fence}{language}\n{content.rstrip(chr(10))}\n{fence}\n"


def scalar(value: str) -> str:
    """A text as YAML, plain where YAML reads it as a text anyway; JSON's texts are YAML's too."""
    plain = re.fullmatch(r"(?:\./)?[A-Za-z][\w./-]*", value, re.ASCII) and value.lower() not in WORDS
    return value if plain else json.dumps(value)


def _longest_run(content: str) -> int:
    return max((len(run) for run in re.findall("`+", content)), default=0)
