"""Line charts as SVG files for docs/images. Each line is named at its end, so the chart is readable without colors."""

from collections.abc import Mapping
from pathlib import Path

from app.widgets.charts import Points, Scale, padded_range, tick_labels, ticks
from app.widgets.text import safe, tag

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 56, 180, 48, 48  # names of 20 letters fit at the right
LINE_HEIGHT = 17  # distance of names, in pixels
COLORS = ("#0d665e", "#8c4a1f", "#3b5b92", "#7a3d78", "#5f6f1f", "#b0243f")
INK, MUTED, GRID, PAPER = "#2a2420", "#695d53", "#e0d7ca", "#fffdfa"
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


def write_line_chart(file: Path, title: str, across: str, lines: Mapping[str, Points]) -> None:
    """Write the chart of `lines`, {name: points in order of x}; `across` is the label of the x axis."""
    xs, ys = zip(*(point for points in lines.values() for point in points), strict=True)
    x = Scale(0, max(xs), LEFT, WIDTH - RIGHT)
    y = Scale(*padded_range(min(ys), max(ys)), HEIGHT - BOTTOM, TOP)
    heights = _name_heights({name: y(points[-1][1]) for name, points in lines.items()})
    ends = ", ".join(f"{name} {points[-1][1]:.2f}" for name, points in lines.items())
    drawn = [
        tag("title", safe(f"{title}: {ends}")),
        tag("rect", width=WIDTH, height=HEIGHT, fill=PAPER),
        _text(16, 26, title, INK, font_size=15, font_weight=600),
        *_grid(x, y, across),
        *(_line(name, points, COLORS[i], x, y, heights[name]) for i, (name, points) in enumerate(lines.items())),
    ]
    root = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img"}
    picture = tag("svg", "\n".join(["", *drawn, ""]), **root, font_family=FONT, font_size=13)
    file.write_text(picture + "\n", encoding="utf-8")


def _grid(x: Scale, y: Scale, across: str) -> list[str]:
    rows, columns = ticks(y.low, y.high, 6), ticks(x.low, x.high, 8)
    drawn = [
        tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y(row):.1f}", y2=f"{y(row):.1f}", stroke=GRID) for row in rows
    ]
    labels = zip(rows, tick_labels(rows, False), strict=True)
    drawn += [_text(LEFT - 8, y(row) + 4, words, text_anchor="end") for row, words in labels]
    drawn += [_text(x(value), HEIGHT - BOTTOM + 20, f"{value:g}", text_anchor="middle") for value in columns]
    return [*drawn, _text(WIDTH - RIGHT, HEIGHT - 10, across, text_anchor="end")]


def _line(name: str, points: Points, color: str, x: Scale, y: Scale, name_height: float) -> str:
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    end, last = points[-1]
    return (
        tag("polyline", fill="none", stroke=color, stroke_width=2, points=path)
        + tag("circle", cx=f"{x(end):.1f}", cy=f"{y(last):.1f}", r=3, fill=color)
        + _text(WIDTH - RIGHT + 10, name_height + 4, f"{name} {last:.2f}", color, font_weight=600)
    )


def _name_heights(ends: Mapping[str, float]) -> dict[str, float]:
    """Heights of the names beside the ends of their lines, moved down where they would overlap."""
    heights: dict[str, float] = {}
    lowest = 0.0
    for name, height in sorted(ends.items(), key=lambda item: item[1]):
        heights[name] = lowest = max(height, lowest + LINE_HEIGHT)
    return heights


def _text(x: float, y: float, words: str, fill: str = MUTED, **attributes: object) -> str:
    return tag("text", safe(words), x=f"{x:.1f}", y=f"{y:.1f}", fill=fill, **attributes)
