"""Text that may be put into `gr.HTML`: whatever a user or a model wrote is escaped, here and nowhere else.

`gr.HTML` pastes values into templates, so besides HTML's own characters `$`, `{`, `}` and the backtick are escaped too.
"""

import html

EXTRA = str.maketrans({"$": "&#36;", "{": "&#123;", "}": "&#125;", "`": "&#96;", "\\": "&#92;"})


def safe(text: object) -> str:
    """`text` as HTML that shows it literally."""
    return html.escape(str(text), quote=True).translate(EXTRA)


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
