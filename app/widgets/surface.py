"""Heat map of numbers as SVG: a cell per row and column with its number, the best row of each column framed.

The numbers repeat what the colours show, so it is readable without colours.
"""

from collections.abc import Mapping, Sequence

from app.widgets.text import safe, tag

LEFT, TOP, CELL, ROW = 96, 34, 74, 27
"""Pixels: width of the row names, height of the column names, width and height of a cell."""
PALEST, DARKEST = 0.08, 0.62


def surface(title: str, rows: Mapping[str, Sequence[float]], columns: Sequence[str], hint: str = "") -> str:
    """`rows`: name → a speedup for each of `columns`. Cells above and below 1 have different colours."""
    if not rows:
        return ""
    width, height = LEFT + CELL * len(columns) + 2, TOP + ROW * len(rows) + 2
    best = [max(row[column] for row in rows.values()) for column in range(len(columns))]
    heads = "".join(
        tag("text", safe(name), x=LEFT + CELL * (i + 0.5), y=TOP - 10, text_anchor="middle")
        for i, name in enumerate(columns)
    )
    most = max((abs(value - 1) for row in rows.values() for value in row), default=0) or 1.0
    body = "".join(_row(at, name, values, best, most) for at, (name, values) in enumerate(rows.items()))
    words = "; ".join(f"{name}: {', '.join(f'{v:.2f}' for v in values)}" for name, values in rows.items())
    picture = tag(
        "svg",
        heads + body,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=f"{title}. Columns {', '.join(columns)}. {words}",
    )
    note = tag("p", safe(hint), class_="sp-hint") if hint else ""
    return tag("figure", tag("figcaption", safe(title)) + picture + note, class_="sp-chart sp-surface-chart")


def _row(at: int, name: str, values: Sequence[float], best: Sequence[float], most: float) -> str:
    y = TOP + ROW * at
    label = tag("text", safe(name), x=LEFT - 10, y=y + ROW / 2, text_anchor="end", dominant_baseline="middle")
    return label + "".join(_cell(LEFT + CELL * i, y, v, v == best[i], most) for i, v in enumerate(values))


def _cell(x: float, y: float, value: float, best: bool, most: float) -> str:
    kind = "sp-heat-gain" if value >= 1 else "sp-heat-loss"
    shade = PALEST + (DARKEST - PALEST) * min(abs(value - 1) / most, 1)
    box = tag("rect", x=x + 1, y=y + 1, width=CELL - 2, height=ROW - 2, rx=4, class_=kind, fill_opacity=f"{shade:.2f}")
    frame = tag("rect", x=x + 2, y=y + 2, width=CELL - 4, height=ROW - 4, rx=3, class_="sp-heat-best") if best else ""
    words = tag(
        "text",
        f"{value:.2f}×",
        x=x + CELL / 2,
        y=y + ROW / 2,
        text_anchor="middle",
        dominant_baseline="middle",
        class_="sp-heat-best-text" if best else None,
    )
    return box + frame + words
