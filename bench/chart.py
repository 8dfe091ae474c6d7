"""Bar charts as SVG, by hand: readable on light and on dark, without a library."""

from html import escape

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #57606a }
  .title { font-size: 16px; font-weight: 600; fill: #1f2328 }
  .value { font-size: 12px }
  .ours { fill: #1a7f64 } .plain { fill: #9aa4af } .lua { fill: #d9822b } .cell { fill: #8250df }
  @media (prefers-color-scheme: dark) {
    text { fill: #9ea7b3 } .title { fill: #e6edf3 }
    .ours { fill: #3fb98f } .plain { fill: #6e7681 } .lua { fill: #e39a4d } .cell { fill: #a371f7 }
  }
"""

LEFT, WIDTH, RIGHT, BAR, GAP = 150, 440, 80, 13, 14


def bars(title, series, groups, scale=None):
    """A chart of horizontal bars.

    `series` are pairs of a class and its name; `groups` are pairs of a label and a value for each class, with None where there
    is none. `scale` writes a value beside its bar.
    """
    scale = scale or (lambda value: f"{value:,.0f}")
    most = max(value for _, values in groups for value in values.values() if value is not None)
    out, y = [], 24
    out.append(f'<text class="title" x="0" y="{y - 6}">{escape(title)}</text>')
    y += 18
    x = LEFT
    for name, label in series:
        out.append(f'<rect class="{name}" x="{x}" y="{y - 10}" width="12" height="12" rx="2"/>')
        out.append(f'<text x="{x + 18}" y="{y}">{escape(label)}</text>')
        x += 30 + 7.2 * len(label)
    y += 16
    for label, values in groups:
        shown = [(name, values[name]) for name, _ in series if values.get(name) is not None]
        middle = y + len(shown) * (BAR + 2) / 2 + 4
        out.append(f'<text x="{LEFT - 10}" y="{middle:.0f}" text-anchor="end">{escape(label)}</text>')
        for name, value in shown:
            width = max(1.0, WIDTH * value / most)
            out.append(f'<rect class="{name}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>')
            out.append(f'<text class="value" x="{LEFT + width + 6:.1f}" y="{y + 11}">{escape(scale(value))}</text>')
            y += BAR + 2
        y += GAP
    width, height = LEFT + WIDTH + RIGHT, y
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
    return f'{head} aria-label="{escape(title)}">\n<style>{STYLE}</style>\n' + "\n".join(out) + "\n</svg>\n"
