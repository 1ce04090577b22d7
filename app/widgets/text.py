"""Text that may be put into `gr.HTML`: whatever a user or a model wrote is escaped, here and nowhere else.

`gr.HTML` pastes values into templates, so besides HTML's own characters `$`, `{`, `}` and the backtick are escaped too.
"""

import html
import re

EXTRA = str.maketrans({"$": "&#36;", "{": "&#123;", "}": "&#125;", "`": "&#96;", "\\": "&#92;"})
SEAMS = re.compile("(?<=[-_@/])(?=[^-_@/])")
QUOTED = re.compile("&#96;(.+?)&#96;")


def safe(text: object) -> str:
    """`text` as HTML that shows it literally."""
    return html.escape(str(text), quote=True).translate(EXTRA)


def breakable(text: object) -> str:
    """The same, for a name that may be wider than its place: its lines break after "-", "_", "@", "/"."""
    return "<wbr>".join(map(safe, SEAMS.split(str(text))))


def coded(text: object) -> str:
    """The same, with what stands between backticks shown as code, as command lines are written in messages."""
    return QUOTED.sub(r"<code>\1</code>", safe(text))


def tag(name: str, content: str = "", **attributes: object) -> str:
    """`<name attributes>content</name>`. `content` must already be HTML; attribute values are escaped.

    `class_` stands for `class`; underscores become dashes; None and False leave an attribute out.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(key if value is True else f'{key}="{safe(value)}"')
    return f"<{' '.join(parts)}>{content}</{name}>"
