"""Markdown of answers as a tree of elements that we know, for a script that builds them: no HTML at any point.

HTML in an answer is text, a picture is a link to it, and a link leads to the web or nowhere.
"""

from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from app import code_parts

Node = str | dict[str, Any]
LONGEST, DEEPEST = 40_000, 40
"""Characters that are read as Markdown (longer ones are one text), and elements within each other."""
SCHEMES = ("http", "https", "mailto")
TAGS = {
    **{"paragraph": "p", "bullet_list": "ul", "ordered_list": "ol", "list_item": "li", "blockquote": "blockquote"},
    **{"em": "em", "strong": "strong", "s": "s", "table": "table", "thead": "thead", "tbody": "tbody", "tr": "tr"},
    **{"th": "th", "td": "td", "hr": "hr", "hardbreak": "br"},
}
"""What becomes an element of its own, and which."""
PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")


def nodes(text: str) -> list[Node]:
    """Texts and `{"tag", "children", …}`, in order."""
    try:
        root = SyntaxTreeNode(PARSER.parse(text)) if len(text) <= LONGEST else None
    except RecursionError:
        root = None
    if root is None or _depth(root) > DEEPEST:
        return [{"tag": "pre", "language": "", "children": [text]}]
    return _children(root)


def _depth(root: SyntaxTreeNode) -> int:
    """How many nodes lie within each other."""
    level, depth = list(root.children), 0
    while level:
        level, depth = [child for node in level for child in node.children], depth + 1
    return depth


def _children(node: SyntaxTreeNode) -> list[Node]:
    return [made for child in node.children for made in _node(child)]


def _node(node: SyntaxTreeNode) -> list[Node]:
    if node.type in ("inline", "root"):
        return _children(node)
    if node.type in ("text", "softbreak"):
        return [node.content or "\n"] if node.type == "softbreak" or node.content else []
    if node.type == "paragraph" and node.hidden:  # of a tight list
        return _children(node)
    return [_element(node)]


def _element(node: SyntaxTreeNode) -> Node:
    if node.type in ("fence", "code_block"):
        language = (node.info.split() or [""])[0][:40]
        return {"tag": "pre", "language": language, "children": code_parts.parts(node.content, language)}
    if node.type == "code_inline":
        return {"tag": "code", "children": [node.content]}
    if node.type == "heading":
        return {"tag": "heading", "level": int(node.tag[1:]), "children": _children(node)}
    if node.type == "link":
        return _link(node)
    if node.type in TAGS:
        more = {"start": node.attrs["start"]} if "start" in node.attrs else {}
        return {"tag": TAGS[node.type], "children": _children(node), **more}
    return node.content  # nothing that the parser makes today


def _link(node: SyntaxTreeNode) -> Node:
    address = str(node.attrs.get("href", ""))
    if address.partition(":")[0].lower() not in SCHEMES:
        return {"tag": "span", "children": _children(node)}
    return {"tag": "a", "href": address, "children": _children(node)}
