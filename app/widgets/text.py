"""Escapes text of users and models for `gr.HTML`. No other module escapes HTML.

`gr.HTML` inserts values into templates, so `$`, `{`, `}`, the backtick and the backslash are escaped too.
"""

import html
import re

EXTRA = str.maketrans({"$": "&#36;", "{": "&#123;", "}": "&#125;", "`": "&#96;", "\\": "&#92;"})
QUOTED = re.compile("&#96;(.+?)&#96;")


def safe(text: object) -> str:
    """`text` as HTML that shows it literally."""
    return html.escape(str(text), quote=True).translate(EXTRA)


def safe_with_code(text: object) -> str:
    """`safe`, with text between backticks shown as code."""
    return QUOTED.sub(r"<code>\1</code>", safe(text))


def tag(name: str, content: str = "", **attributes: object) -> str:
    """`<name attributes>content</name>`. `content` must already be HTML; attribute values are escaped.

    `class_` means `class`; underscores become dashes; attributes with None or False are left out.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(key if value is True else f'{key}="{safe(value)}"')
    return f"<{' '.join(parts)}>{content}</{name}>"
