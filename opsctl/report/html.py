"""Self-contained HTML pages: no script, no network, small inline SVG charts. All text is escaped and masked here.

page = Page("Run 42")
page.section("Hosts")
page.table(["host", "result"], [["b1", "ok"]])
page.line_chart("Acceptance length", {"before": [(0, 2.1), (1, 2.2)], "after": [(0, 3.0), (1, 3.1)]}, unit="tokens")
Path("run.html").write_text(page.html())
"""

from __future__ import annotations

import html as escaping
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from opsctl.secret import mask
from opsctl.text import printable

Tone = Literal["good", "bad", "warn", "plain"]
Points = Sequence[tuple[float, float]]

_COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 200, 56, 24  # of a chart, in pixels
_CSS = """
:root{color-scheme:light dark;--fg:#1f2937;--bg:#fff;--dim:#6b7280;--line:#e5e7eb;--soft:#f9fafb}
@media(prefers-color-scheme:dark){:root{--fg:#e5e7eb;--bg:#111827;--dim:#9ca3af;--line:#374151;--soft:#1f2937}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:1000px;
margin:2em auto;padding:0 1em}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em;border-bottom:1px solid var(--line)}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3em .6em;border-bottom:1px solid var(--line);
vertical-align:top}th{color:var(--dim);font-weight:500}.num{text-align:right;font-variant-numeric:tabular-nums}
pre{background:var(--soft);padding:.7em;overflow:auto;font-size:13px}.dim{color:var(--dim)}
.good{color:#059669}.bad{color:#dc2626}.warn{color:#d97706}.add{color:#059669}.del{color:#dc2626}.at{color:#0891b2}
svg{width:100%;height:auto;max-width:800px}svg text{fill:var(--dim);font:11px system-ui,sans-serif}
figure{margin:1em 0}figcaption{color:var(--dim)}
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """Text in a table with a meaning that its colour shows."""

    text: str
    tone: Tone = "plain"


@dataclass(slots=True)
class Page:
    """A page that is put together from top to bottom."""

    title: str
    _parts: list[str] = field(default_factory=list)

    def section(self, title: str) -> None:
        self._parts.append(f"<h2>{text(title)}</h2>")

    def paragraph(self, content: str, tone: Tone = "plain") -> None:
        self._parts.append(f'<p class="{tone}">{text(content)}</p>')

    def items(self, lines: Iterable[str | Cell]) -> None:
        self._parts.append("<ul>" + "".join(f"<li>{_cell(line)}</li>" for line in lines) + "</ul>")

    def facts(self, pairs: Mapping[str, object]) -> None:
        """Names and values, one on a line."""
        rows = "".join(f"<tr><th>{text(k)}</th><td>{_cell(v)}</td></tr>" for k, v in pairs.items())
        self._parts.append(f"<table>{rows}</table>")

    def table(self, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        cells = "".join(f"<th>{text(h)}</th>" for h in head)
        body = "".join("<tr>" + "".join(_td(value) for value in row) + "</tr>" for row in rows)
        self._parts.append(f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>")

    def diff(self, lines: Iterable[str], title: str = "") -> None:
        """Lines of a unified diff."""
        head = f"<summary>{text(title)}</summary>" if title else ""
        body = "\n".join(_diff_line(line) for line in lines)
        self._parts.append(f"<details open>{head}<pre>{body}</pre></details>")

    def line_chart(self, title: str, series: Mapping[str, Points], unit: str = "", x_unit: str = "") -> None:
        """Lines through points (x, y); the y axis begins at 0 where all values are positive."""
        self._figure(title, _line_chart(series, x_unit), list(series), unit)

    def bar_chart(self, title: str, values: Mapping[str, float], unit: str = "") -> None:
        self._figure(title, _bar_chart(values), [], unit)

    def timeline(self, title: str, rows: Mapping[str, Sequence[tuple[float, float, str, Tone]]]) -> None:
        """Rows of (start, end, label, tone), in seconds."""
        self._figure(title, _timeline(rows), [], "s")

    def html(self) -> str:
        """The whole page."""
        title = text(self.title)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{_CSS}</style></head>'
            f"<body><h1>{title}</h1>\n" + "\n".join(self._parts) + "\n</body></html>\n"
        )

    def _figure(self, title: str, svg: str, legend: Sequence[str], unit: str) -> None:
        keys = " ".join(
            f'<span style="color:{_COLOURS[i % len(_COLOURS)]}">■</span> {text(name)}' for i, name in enumerate(legend)
        )
        caption = f"{text(title)}{f' ({text(unit)})' if unit else ''} {keys}"
        self._parts.append(f"<figure><figcaption>{caption}</figcaption>{svg}</figure>")


def text(value: object) -> str:
    """Anything as text inside HTML: masked, printable, escaped."""
    return escaping.escape(printable(mask(str(value))), quote=True)


def _cell(value: object) -> str:
    if isinstance(value, Cell):
        return f'<span class="{value.tone}">{text(value.text)}</span>'
    return text(value)


def _td(value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    shown = f"{value:g}" if isinstance(value, float) else _cell(value)
    return f'<td class="num">{shown}</td>' if number else f"<td>{shown}</td>"


def _diff_line(line: str) -> str:
    kind = {"+": "add", "-": "del", "@": "at"}.get(line[:1])
    return f'<span class="{kind}">{text(line)}</span>' if kind else text(line)


def _svg(height: float, inside: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img">{inside}</svg>'


def _line_chart(series: Mapping[str, Points], x_unit: str) -> str:
    points = [p for line in series.values() for p in line]
    if not points:
        return '<p class="dim">nothing was measured</p>'
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low, y_high = min(0.0, *(y for _, y in points)), max(y for _, y in points)
    x_span, y_span = (x_high - x_low) or 1.0, (y_high - y_low) or 1.0
    plot_width, plot_height = _WIDTH - _LEFT - 8, _HEIGHT - _BOTTOM - 8

    def place(x: float, y: float) -> str:
        return f"{_LEFT + (x - x_low) / x_span * plot_width:.1f},{8 + (y_high - y) / y_span * plot_height:.1f}"

    parts = []
    for share in (0.0, 0.5, 1.0):
        y = 8 + (1 - share) * plot_height
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - 8}" stroke="currentColor" opacity=".15"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{y_low + share * y_span:.4g}</text>')
    for share, anchor in ((0.0, "start"), (1.0, "end")):
        x = _LEFT + share * plot_width
        label = f"{x_low + share * x_span:.4g} {text(x_unit)}".strip()
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">{label}</text>')
    for index, line in enumerate(series.values()):
        colour = _COLOURS[index % len(_COLOURS)]
        corners = " ".join(place(x, y) for x, y in line)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{corners}"/>')
        if len(line) <= 40:
            parts += [
                f'<circle cx="{place(x, y).split(",")[0]}" cy="{place(x, y).split(",")[1]}" r="3" fill="{colour}">'
                f"<title>{x:g}: {y:g}</title></circle>"
                for x, y in line
            ]
    return _svg(_HEIGHT, "".join(parts))


def _bar_chart(values: Mapping[str, float]) -> str:
    most = max([abs(v) for v in values.values()], default=0.0) or 1.0
    left, row = 180, 22
    parts = []
    for index, (name, value) in enumerate(values.items()):
        y, width = index * row, abs(value) / most * (_WIDTH - left - 70)
        parts.append(f'<text x="{left - 6}" y="{y + 15}" text-anchor="end">{text(name[:28])}</text>')
        parts.append(f'<rect x="{left}" y="{y + 4}" width="{width:.1f}" height="{row - 8}" fill="{_COLOURS[0]}"/>')
        parts.append(f'<text x="{left + width + 5:.1f}" y="{y + 15}">{value:.4g}</text>')
    return _svg(max(row, len(values) * row), "".join(parts))


def _timeline(rows: Mapping[str, Sequence[tuple[float, float, str, Tone]]]) -> str:
    colours = {"good": "#059669", "bad": "#dc2626", "warn": "#d97706", "plain": "#9ca3af"}
    end = max((stop for spans in rows.values() for _, stop, _, _ in spans), default=0.0) or 1.0
    left, row = 120, 24
    scale = (_WIDTH - left - 8) / end
    parts = []
    for index, (name, spans) in enumerate(rows.items()):
        y = index * row
        parts.append(f'<text x="{left - 6}" y="{y + 16}" text-anchor="end">{text(name[:18])}</text>')
        parts += [
            f'<rect x="{left + start * scale:.1f}" y="{y + 4}" width="{max(1.5, (stop - start) * scale):.1f}" '
            f'height="{row - 8}" fill="{colours[tone]}"><title>{text(label)}: {stop - start:.2f} s</title></rect>'
            for start, stop, label, tone in spans
        ]
    bottom = len(rows) * row
    parts.append(f'<text x="{left}" y="{bottom + 14}">0 s</text>')
    parts.append(f'<text x="{_WIDTH - 8}" y="{bottom + 14}" text-anchor="end">{end:.3g} s</text>')
    return _svg(bottom + 20, "".join(parts))
