"""Markdown of responses as a tree of known elements, from which a script builds the page; HTML is never generated.

HTML in a response stays text, pictures become links, and only links with SCHEMES are kept.
"""

from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

Node = str | dict[str, Any]
LONGEST, DEEPEST = 40_000, 40
"""Maximum number of characters and nesting depth; a response beyond these is one text."""
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
    try:
        root = SyntaxTreeNode(PARSER.parse(text)) if len(text) <= LONGEST else None
    except RecursionError:
        root = None
    if root is None or _depth(root) > DEEPEST:
        return [{"tag": "pre", "language": "", "children": [text]}]
    return _children(root)


def _depth(root: SyntaxTreeNode) -> int:
    """Maximum nesting depth of nodes."""
    level, depth = list(root.children), 0
    while level:
        level, depth = [child for node in level for child in node.children], depth + 1
    return depth


def _children(node: SyntaxTreeNode) -> list[Node]:
    return [element for child in node.children for element in _node(child)]


def _node(node: SyntaxTreeNode) -> list[Node]:
    if node.type in ("inline", "root"):
        return _children(node)
    if node.type in ("text", "softbreak"):
        return [node.content or "\n"] if node.type == "softbreak" or node.content else []
    if node.type == "paragraph" and node.hidden:  # paragraph of a tight list
        return _children(node)
    return [_element(node)]


def _element(node: SyntaxTreeNode) -> Node:
    if node.type in ("fence", "code_block"):
        language = (node.info.split() or [""])[0][:40]
        return {"tag": "pre", "language": language, "children": [node.content]}
    if node.type == "code_inline":
        return {"tag": "code", "children": [node.content]}
    if node.type == "heading":
        return {"tag": "heading", "level": int(node.tag[1:]), "children": _children(node)}
    if node.type == "link":
        return _link(node)
    if node.type in TAGS:
        more = {"start": node.attrs["start"]} if "start" in node.attrs else {}
        return {"tag": TAGS[node.type], "children": _children(node), **more}
    return node.content  # fallback for node types that the parser does not produce


def _link(node: SyntaxTreeNode) -> Node:
    address = str(node.attrs.get("href", ""))
    if address.partition(":")[0].lower() not in SCHEMES:
        return {"tag": "span", "children": _children(node)}
    return {"tag": "a", "href": address, "children": _children(node)}
