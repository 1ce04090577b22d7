"""Chart of benchmarks.planner: predicted (ring) and measured (dot) tokens per second, one row per contender."""

from collections.abc import Mapping
from html import escape
from typing import Any

WIDTH, LEFT, RIGHT, TOP, ROW = 760, 170, 60, 64, 25
INK, MUTED, LINE, PREDICTED, MEASURED = "#2a2420", "#695d53", "#e0d7ca", "#0d665e", "#8c4a1f"
FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif"


def picture(result: Mapping[str, Any]) -> str:
    """The chart as an SVG file."""
    rows = result["contenders"]
    most = max(max(row[which]["tokens_per_second"] for which in ("predicted", "measured")) for row in rows) * 1.08
    height = TOP + ROW * len(rows) + 34
    body = "".join(_row(at, row, most) for at, row in enumerate(rows))
    machine = result["machine"]
    words = f"{machine.get('processor') or machine.get('device')}, {machine.get('threads')} threads, {result['date']}"
    head = _text(16, 24, "Tokens a second: predicted by the planner, and measured", INK, 15, "600")
    legend = _ring(LEFT, 46) + _text(LEFT + 12, 50, "predicted", MUTED) + _dot(LEFT + 98, 46)
    legend += _text(LEFT + 110, 50, "measured", MUTED)
    foot = _text(16, height - 10, words, MUTED, 12)
    paper = f'<rect width="{WIDTH}" height="{height}" fill="#fffdfa"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="{FONT}" role="img">\n'
        f"<title>{escape(_description(result))}</title>\n{paper}{head}{legend}{body}{foot}\n</svg>\n"
    )


def _row(at: int, row: Mapping[str, Any], most: float) -> str:
    y = TOP + ROW * at + ROW / 2
    predicted_x, measured_x = (_x(row[which]["tokens_per_second"], most) for which in ("predicted", "measured"))
    rule = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="{LINE}"/>'
    span = f'<line x1="{predicted_x:.1f}" x2="{measured_x:.1f}" y1="{y}" y2="{y}" stroke="{MUTED}" stroke-width="2"/>'
    label = (
        f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end" font-size="13" fill="{INK}">{escape(row["name"])}</text>'
    )
    error = _text(WIDTH - RIGHT + 8, y + 4, f"{row['error']:+.0%}", MUTED, 12)
    return "\n" + rule + span + _dot(measured_x, y) + _ring(predicted_x, y) + label + error


def _x(value: float, most: float) -> float:
    return LEFT + value / most * (WIDTH - RIGHT - LEFT)


def _ring(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y}" r="5.5" fill="none" stroke="{PREDICTED}" stroke-width="2"/>'


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y}" r="3.5" fill="{MEASURED}"/>'


def _text(x: float, y: float, words: str, colour: str, size: int = 13, weight: str = "400") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{colour}">{escape(words)}</text>'


def _description(result: Mapping[str, Any]) -> str:
    parts = (
        f"{row['name']}: {row['predicted']['tokens_per_second']}, {row['measured']['tokens_per_second']}"
        for row in result["contenders"]
    )
    return f"Predicted and measured tokens a second: {'; '.join(parts)}"
