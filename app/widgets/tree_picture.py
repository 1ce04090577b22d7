"""Draft tree as SVG: the root at the left, a column per depth, every node with its rank and acceptance probability.
The texts repeat what the colours show, so it is readable without colours.
"""

from collections.abc import Mapping

from app.widgets.text import safe, tag

TITLE = "The tree"
COLUMN, ROW, MARGIN = 108, 24, 14
"""Pixels: between depths, between leaves, outer margin."""
MOST_NODES = 128
"""A larger tree is not drawn; its number of nodes is shown instead."""

Path = tuple[int, ...]


def tree_picture(chances: Mapping[Path, float]) -> str:
    """`chances`: path of ranks → probability that the node is accepted. It must contain every node's parent except the
    root, (). "" without nodes."""
    if not chances:
        return ""
    if len(chances) > MOST_NODES:
        return tag("p", safe(f"{len(chances):,} nodes: too many to draw."), class_="sp-hint")
    rows = _rows(sorted(chances))
    width = MARGIN * 2 + COLUMN * (max(map(len, chances)) + 1)
    height = MARGIN * 2 + ROW * (max(rows.values()) + 1)
    lines = "".join(_line(path, rows) for path in chances)
    dots = _dot((), rows, 1.0, "root") + "".join(_dot(path, rows, chances[path]) for path in chances)
    words = "; ".join(f"{' '.join(map(str, path))}: {chance:.0%}" for path, chance in list(chances.items())[:24])
    more = " and more" if len(chances) > 24 else ""
    picture = tag(
        "svg",
        lines + dots,
        viewBox=f"0 0 {width} {height:.0f}",
        width=width,
        height=f"{height:.0f}",
        role="img",
        aria_label=f"{TITLE}: {words}{more}",
    )
    caption = tag("figcaption", TITLE)
    scroll = tag("div", picture, class_="sp-tree-scroll", tabindex="0", role="group", aria_label=TITLE)
    return tag("figure", caption + scroll, class_="sp-chart sp-tree-picture")


def _rows(paths: list[Path]) -> dict[Path, float]:
    """Row of each node: leaves below one another, a parent at the middle of its children."""
    nodes = [(), *paths]
    children: dict[Path, list[Path]] = {path: [] for path in nodes}
    for path in paths:
        children[path[:-1]].append(path)
    rows: dict[Path, float] = {}
    leaves = [path for path in nodes if not children[path]]
    rows.update({leaf: float(at) for at, leaf in enumerate(leaves)})
    for path in sorted(nodes, key=len, reverse=True):
        if children[path]:
            rows[path] = (rows[children[path][0]] + rows[children[path][-1]]) / 2
    return rows


def _position(path: Path, rows: Mapping[Path, float]) -> tuple[float, float]:
    return MARGIN + 6 + COLUMN * len(path), MARGIN + ROW * (rows[path] + 0.5)


def _line(path: Path, rows: Mapping[Path, float]) -> str:
    (x1, y1), (x2, y2) = _position(path[:-1], rows), _position(path, rows)
    bend = x1 + COLUMN * 0.72
    curve = f"M{x1:.0f},{y1:.1f} C{bend:.0f},{y1:.1f} {bend:.0f},{y2:.1f} {x2:.0f},{y2:.1f}"
    return tag("path", d=curve, class_="sp-tree-line")


def _dot(path: Path, rows: Mapping[Path, float], chance: float, name: str = "") -> str:
    x, y = _position(path, rows)
    shade = f"{0.12 + 0.88 * chance:.2f}"
    dot = tag("circle", cx=f"{x:.0f}", cy=f"{y:.1f}", r=5, class_="sp-tree-node", fill_opacity=shade)
    share = "<1%" if 0 < chance < 0.005 else f"{chance:.0%}"
    words = name or f"{path[-1]} · {share}"
    return dot + tag("text", safe(words), x=f"{x + 9:.0f}", y=f"{y - 7:.1f}")
