"""Tags: words of a note that start with #. Each links to the rows of its list whose notes contain it."""

import re

from app.widgets.list_query import ListQuery, list_url
from app.widgets.text import safe, tag

TAG = re.compile(r"(?<!\S)#[^\s#,;.]{1,40}")
MOST = 8


def tags_of(note: str) -> list[str]:
    """`#good` and `#paper` of “a #good one for the #paper”, each once, in order."""
    return list(dict.fromkeys(TAG.findall(note or "")))[:MOST]


def tag_links(page: str, note: str) -> str:
    """The tags of a note as links into the list on `page`; "" without any."""
    links = (
        tag("a", safe(each), href=list_url(page, "", ListQuery("", each)), class_="sp-tag") for each in tags_of(note)
    )
    return " ".join(links)
