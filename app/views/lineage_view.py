"""Lineage graph as SVG with boxes that link to their rows: prompts, data, drafts, evaluations and exports from left to
right. Pure functions of rows."""

from collections.abc import Mapping

from app.views.checkpoint_rows import method_words
from app.widgets.text import safe, tag
from formats import FORMATS
from tracking.lineage import DRAFT, RESULTS, Graph, Node

HEADS = ("Prompts", "Data", "Drafts", "Evaluations and exports")
BOX, HIGH, GAP, ROW, TOP = 212, 42, 64, 54, 26
"""Pixels: width and height of a box, gap between columns, distance of rows, top margin."""
LONGEST = 26
"""Maximum number of characters of a name in a box."""
MOST = 120
"""Maximum number of boxes of a picture."""
Places = Mapping[str, tuple[float, float]]


def picture(graph: Graph) -> str:
    """The graph as HTML, or why there is none."""
    if not graph.nodes:
        return tag("p", "These jobs have no results yet.", class_="sp-lead")
    if len(graph.nodes) > MOST:
        return tag("p", safe(f"These jobs have {len(graph.nodes)} results, too many for a picture."), class_="sp-lead")
    columns = sorted({node.column for node in graph.nodes.values()})
    places, width = box_positions(graph), _x(len(columns)) - GAP + 1
    height = max(y for _, y in places.values()) + ROW
    edges = "".join(_edge(places[a], places[b]) for a, b in graph.edges if a in places and b in places)
    boxes = "".join(_box(node, *places[node.key]) for node in graph.nodes.values())
    heads = "".join(tag("text", safe(HEADS[column]), x=_x(at), y=14) for at, column in enumerate(columns))
    drawn = tag(
        "svg",
        heads + edges + boxes,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        role="group",
        aria_label="Lineage, from left to right",
    )
    return tag("div", drawn, class_="sp-lineage", tabindex="0", role="region", aria_label="Lineage")


def box_positions(graph: Graph) -> dict[str, tuple[float, float]]:
    """key → upper left corner of the box. Boxes of a column are ordered by their sources, do not overlap and are not
    above their first source; empty columns are left out."""
    places: dict[str, tuple[float, float]] = {}
    for at, column in enumerate(sorted({node.column for node in graph.nodes.values()})):
        nodes = [node for node in graph.nodes.values() if node.column == column]
        nodes.sort(key=lambda node: _source_y(node, graph, places))
        next_y = float(TOP)
        for node in nodes:
            y = max(next_y, _source_y(node, graph, places))
            places[node.key] = (_x(at), y)
            next_y = y + ROW
    return places


def _source_y(node: Node, graph: Graph, places: Places) -> float:
    """y of the highest box that the node came from."""
    sources = [places[a][1] for a, b in graph.edges if b == node.key and a in places]
    return min(sources, default=float(TOP))


def _x(column: int) -> float:
    return 1 + column * (BOX + GAP)


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    """A curve from the right side of a box to the left side of another; within a column along the left sides."""
    (x0, y0), (x1, y1) = (start[0] + BOX, start[1] + HIGH / 2), (end[0], end[1] + HIGH / 2)
    if start[0] == end[0]:
        return _path(f"M{start[0]:.0f} {y0:.0f} C{x1 - 26:.0f} {y0:.0f} {x1 - 26:.0f} {y1:.0f} {x1:.0f} {y1:.0f}")
    bend = (x1 - x0) / 2
    return _path(f"M{x0:.0f} {y0:.0f} C{x0 + bend:.0f} {y0:.0f} {x1 - bend:.0f} {y1:.0f} {x1:.0f} {y1:.0f}")


def _path(d: str) -> str:
    return tag("path", d=d, class_="sp-edge")


def _box(node: Node, x: float, y: float) -> str:
    name = FORMATS[node.name].title if node.column == RESULTS and node.name in FORMATS else node.name
    note = method_words(node.note) if node.column == DRAFT else node.note
    frame = tag("rect", x=f"{x:.0f}", y=f"{y:.0f}", width=BOX, height=HIGH, rx=8)
    short = name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
    words = tag("text", safe(short), x=f"{x + 10:.0f}", y=f"{y + 18:.0f}", class_="sp-box-name")
    small = tag("text", safe(note), x=f"{x + 10:.0f}", y=f"{y + 34:.0f}")
    return tag("a", tag("title", safe(f"{name}, {note}")) + frame + words + small, href=node.link)
