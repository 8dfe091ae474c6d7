"""Bars over time as SVG, by hand: no library is worth it for this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = {
    "admitted": "#2a8f5b",
    "refused: sku": "#e2a03f",
    "refused: buyer": "#c2452d",
    "sold out": "#b8bec6",
}
LABELS = {"refused: sku": "refused by the bucket", "refused: buyer": "refused by the buyer's window"}
INK, FAINT = "#30363d", "#d7dbe0"


@dataclass
class Panel:
    title: str
    series: dict[str, Counter[int]]
    seconds: int
    line: float | None = None
    line_text: str = ""
    most: float | None = None


def nice(top: float) -> float:
    step = 1.0
    while True:
        for factor in (1, 2, 5):
            if step * factor >= top:
                return step * factor
        step *= 10


def draw(panels: Iterable[list[Panel]], width: int = 900, height: int = 190) -> str:
    """Rows of panels, and the legend of what stands in them."""
    rows = list(panels)
    out: list[str] = []
    used = {name for row in rows for panel in row for name in panel.series}
    x = 52.0
    for name, colour in COLOURS.items():
        if name in used:
            out.append(f'<rect x="{x:.0f}" y="14" width="12" height="12" fill="{colour}"/>')
            label = LABELS.get(name, name)
            out.append(f'<text x="{x + 18:.0f}" y="24">{escape(label)}</text>')
            x += 46 + 7 * len(label)
    for index, row in enumerate(rows):
        each = width / len(row)
        for column, panel in enumerate(row):
            out += _panel(panel, column * each + 52, 40 + index * height, each - 72, height - 62)
    tall = 40 + len(rows) * height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}" font-family="sans-serif"'
        f' font-size="12" fill="{INK}"><rect width="{width}" height="{tall}" fill="#ffffff"/>'
        + "\n".join(out)
        + "</svg>\n"
    )


def _panel(panel: Panel, x: float, y: float, w: float, h: float) -> list[str]:
    y += 22
    sums = [sum(series[s] for series in panel.series.values()) for s in range(panel.seconds)]
    top = panel.most or nice(max([*sums, panel.line or 0, 1]))
    out = [f'<text x="{x:.0f}" y="{y - 8:.0f}" font-weight="bold">{escape(panel.title)}</text>']
    for part in (0.0, 0.5, 1.0):
        at = y + h * (1 - part)
        out.append(f'<path d="M{x:.1f} {at:.1f}h{w:.1f}" stroke="{FAINT}"/>')
        out.append(f'<text x="{x - 6:.0f}" y="{at + 4:.0f}" text-anchor="end">{top * part:g}</text>')
    wide = w / max(panel.seconds, 1)
    for second in range(panel.seconds):
        base = y + h
        for name, series in panel.series.items():
            tall = h * min(series[second], top) / top
            if tall:
                base -= tall
                out.append(
                    f'<rect x="{x + second * wide:.2f}" y="{base:.2f}" width="{max(wide - 0.6, 0.6):.2f}"'
                    f' height="{tall:.2f}" fill="{COLOURS[name]}"/>'
                )
    if panel.line is not None:
        at = y + h * (1 - panel.line / top)
        out.append(f'<path d="M{x:.1f} {at:.1f}h{w:.1f}" stroke="{INK}" stroke-dasharray="4 3"/>')
        out.append(f'<text x="{x + w:.0f}" y="{at - 5:.0f}" text-anchor="end">{escape(panel.line_text)}</text>')
    for part in (0.0, 0.5, 1.0):
        anchor = "start" if part == 0 else "end" if part == 1 else "middle"
        label = f"{panel.seconds * part:g} s"
        out.append(f'<text x="{x + w * part:.0f}" y="{y + h + 15:.0f}" text-anchor="{anchor}">{label}</text>')
    return out
