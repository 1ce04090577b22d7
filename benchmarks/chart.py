"""Line charts as SVG files for docs/images. Each line is named at its end, so the chart is readable without colors."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from app.widgets.charts import Scale, tick_words, ticks

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 56, 130, 48, 48
LINE_HEIGHT = 17  # distance of names, in pixels
COLORS = ("#0d665e", "#8c4a1f", "#3b5b92", "#7a3d78", "#5f6f1f", "#b0243f")
INK, MUTED, GRID, PAPER = "#2a2420", "#695d53", "#e0d7ca", "#fffdfa"

Points = Sequence[tuple[float, float]]


def write_line_chart(file: Path, title: str, across: str, lines: Mapping[str, Points]) -> None:
    """Write the chart of `lines`, {name: points in order of x}; `across` is the label of the x axis."""
    xs, ys = zip(*(point for points in lines.values() for point in points), strict=True)
    x = Scale(0, max(xs), LEFT, WIDTH - RIGHT)
    margin = (max(ys) - min(ys)) * 0.06
    y = Scale(min(ys) - margin, max(ys) + margin, HEIGHT - BOTTOM, TOP)
    heights = _name_heights({name: y(points[-1][1]) for name, points in lines.items()})
    drawn = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>',
        _text(16, 26, title, INK, size=15, weight=600),
        *_grid(x, y, across),
        *(_line(name, points, COLORS[i], x, y, heights[name]) for i, (name, points) in enumerate(lines.items())),
    ]
    ends = ", ".join(f"{name} {points[-1][1]:.2f}" for name, points in lines.items())
    file.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f"font-family=\"system-ui, -apple-system, 'Segoe UI', sans-serif\">\n"
        f"<title>{escape(title)}: {escape(ends)}</title>\n" + "\n".join(drawn) + "\n</svg>\n",
        encoding="utf-8",
    )


def _grid(x: Scale, y: Scale, across: str) -> list[str]:
    rows, columns = ticks(y.low, y.high, 6), ticks(x.low, x.high, 8)
    drawn = [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="{GRID}"/>'
        for value in rows
    ]
    drawn += [
        _text(LEFT - 8, y(value) + 4, words, anchor="end")
        for value, words in zip(rows, tick_words(rows, False), strict=True)
    ]
    drawn += [_text(x(value), HEIGHT - BOTTOM + 20, f"{value:g}", anchor="middle") for value in columns]
    return [*drawn, _text(WIDTH - RIGHT, HEIGHT - 10, across, anchor="end")]


def _line(name: str, points: Points, color: str, x: Scale, y: Scale, name_height: float) -> str:
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
    end, last = points[-1]
    return (
        f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{path}"/>'
        f'<circle cx="{x(end):.1f}" cy="{y(last):.1f}" r="3" fill="{color}"/>'
        + _text(WIDTH - RIGHT + 10, name_height + 4, f"{name} {last:.2f}", color, weight=600)
    )


def _name_heights(ends: Mapping[str, float]) -> dict[str, float]:
    """Heights of the names beside the ends of their lines, moved down where they would overlap."""
    heights: dict[str, float] = {}
    lowest = 0.0
    for name, height in sorted(ends.items(), key=lambda item: item[1]):
        heights[name] = lowest = max(height, lowest + LINE_HEIGHT)
    return heights


def _text(
    x: float, y: float, words: str, fill: str = MUTED, size: int = 13, weight: int = 400, anchor: str = "start"
) -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {style}>{escape(words)}</text>'
