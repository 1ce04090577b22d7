"""Markdown of responses as a tree of known elements, from which a script builds the page; HTML is never generated.

HTML in a response stays text, pictures become links, and only links with SCHEMES are kept.
"""

from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

Node = str | dict[str, Any]
LONGEST, DEEPEST = 40_000, 40  # maximum number of characters and nesting depth; a response beyond these is one text
SCHEMES = ("http", "https", "mailto")
TAGS = {
    **{"paragraph": "p", "bullet_list": "ul", "ordered_list": "ol", "list_item": "li", "blockquote": "blockquote"},
    **{"em": "em", "strong": "strong", "s": "s", "table": "table", "thead": "thead", "tbody": "tbody", "tr": "tr"},
    **{"th": "th", "td": "td", "hr": "hr", "hardbreak": "br"},
}
"""Markdown node type → HTML tag."""
PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")


def nodes(text: str) -> list[Node]:
    """Texts and `{"tag", "children", …}`, in order."""
    tokens = PARSER.parse(text) if len(text) <= LONGEST else []
    levels = (part.level for token in tokens for part in (token, *(token.children or ())))
    if len(text) > LONGEST or max(levels, default=0) > DEEPEST:
        return [{"tag": "pre", "language": "", "children": [text]}]
    return _children(SyntaxTreeNode(tokens))


def _children(node: SyntaxTreeNode) -> list[Node]:
    return [element for child in node.children for element in _nodes(child)]


def _nodes(node: SyntaxTreeNode) -> list[Node]:
    if node.type == "inline" or node.type == "paragraph" and node.hidden:  # hidden: in a tight list
        return _children(node)
    if node.type == "softbreak":
        return ["\n"]
    return [_element(node)] if node.type != "text" or node.content else []


def _element(node: SyntaxTreeNode) -> Node:
    if node.type in ("fence", "code_block"):
        language = (node.info.split() or [""])[0][:40]
        return {"tag": "pre", "language": language, "children": [node.content]}
    if node.type == "code_inline":
        return {"tag": "code", "children": [node.content]}
    if node.type == "heading":
        return {"tag": "heading", "level": int(node.tag[1:]), "children": _children(node)}
    if node.type == "link":
        address = str(node.attrs.get("href", ""))
        link = {"tag": "a", "href": address} if address.partition(":")[0].lower() in SCHEMES else {"tag": "span"}
        return {**link, "children": _children(node)}
    if node.type in TAGS:
        more = {"start": node.attrs["start"]} if "start" in node.attrs else {}
        return {"tag": TAGS[node.type], "children": _children(node), **more}
    return node.content
