"""A tree of guesses as a small SVG picture: the root at the left, a column for each depth, every node with its rank and
its chance. The words say what the colour says: nobody needs colours to read it.
"""

from collections.abc import Mapping

from app.widgets.text import safe, tag

TITLE = "The tree"
COLUMN, ROW, MARGIN = 108, 24, 14
"""Pixels: between depths, between leaves, around."""
MOST_NODES = 128
"""More are said, not drawn."""

Path = tuple[int, ...]


def tree_picture(chances: Mapping[Path, float]) -> str:
    """`chances`: path of ranks → how likely the node is accepted; every node's parent is among them (the root, (), is
    not). "" for none."""
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
    """Where each node lies: leaves below one another, a parent beside the middle of its children."""
    every = [(), *paths]
    children: dict[Path, list[Path]] = {path: [] for path in every}
    for path in paths:
        children[path[:-1]].append(path)
    rows: dict[Path, float] = {}
    leaves = [path for path in every if not children[path]]
    rows.update({leaf: float(at) for at, leaf in enumerate(leaves)})
    for path in sorted(every, key=len, reverse=True):
        if children[path]:
            rows[path] = (rows[children[path][0]] + rows[children[path][-1]]) / 2
    return rows


def _place(path: Path, rows: Mapping[Path, float]) -> tuple[float, float]:
    return MARGIN + 6 + COLUMN * len(path), MARGIN + ROW * (rows[path] + 0.5)


def _line(path: Path, rows: Mapping[Path, float]) -> str:
    (x1, y1), (x2, y2) = _place(path[:-1], rows), _place(path, rows)
    bend = x1 + COLUMN * 0.72
    curve = f"M{x1:.0f},{y1:.1f} C{bend:.0f},{y1:.1f} {bend:.0f},{y2:.1f} {x2:.0f},{y2:.1f}"
    return tag("path", d=curve, class_="sp-tree-line")


def _dot(path: Path, rows: Mapping[Path, float], chance: float, name: str = "") -> str:
    x, y = _place(path, rows)
    shade = f"{0.12 + 0.88 * chance:.2f}"
    dot = tag("circle", cx=f"{x:.0f}", cy=f"{y:.1f}", r=5, class_="sp-tree-node", fill_opacity=shade)
    share = "<1%" if 0 < chance < 0.005 else f"{chance:.0%}"
    words = name or f"{path[-1]} · {share}"
    return dot + tag("text", safe(words), x=f"{x + 9:.0f}", y=f"{y - 7:.1f}")
