"""A small SVG writer: boxes, arrows and text, readable on light and dark pages.

The picture has a background of its own, because a page's palette may differ from the one that the
system prefers. Text stays text.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Literal

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]

STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink) } .name
{ font-weight: 600; font-size: 14px } .small { font-size: 12px; fill: var(--faint) } .page { fill:
var(--page); stroke: var(--edge) } .group { fill: var(--group); stroke: var(--edge);
stroke-dasharray: 4 3 } .box { fill: var(--box); stroke: var(--line); stroke-width: 1.5 } .main {
fill: var(--main); stroke: var(--strong); stroke-width: 1.5 } .line { fill: none; stroke:
var(--line); stroke-width: 1.5 } .thin { fill: none; stroke: var(--edge); stroke-dasharray: 3 3 }
.tip { fill: var(--line) } svg { --page: #fff; --group: #f6f7f9; --box: #fff; --main: #e6f0ff;
--ink: #1b1f24; --faint: #4d5661; --edge: #c8ced6; --line: #57606a; --strong: #2f6fd0 } @media
(prefers-color-scheme: dark) { svg { --page: #16191f; --group: #1d2129; --box: #242a33; --main:
#1d3358; --ink: #e6e9ee; --faint: #b3bcc8; --edge: #3d4552; --line: #9aa5b3; --strong: #6ea3f0 } }
"""


class Drawing:
    """A picture of a fixed size. Coordinates are pixels from the top left."""

    def __init__(self, width: int, height: int, title: str, text: str) -> None:
        """`title` and `text` are for people who do not see the picture."""
        self._size = f"{width} {height}"
        self._head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._size}" '
            f'width="{width}" height="{height}" role="img" aria-labelledby="title text">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="text">{escape(text)}</desc>',
            f"<style>\n{STYLE}\n</style>",
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
            'markerHeight="8" orient="auto-start-reverse"><path class="tip" d="M0 0 10 5 0 10z"/>'
            "</marker></defs>",
        ]
        self._body: list[str] = []
        self.rectangle((0.5, 0.5), (width - 1, height - 1), "page")

    def rectangle(self, at: Point, size: Point, kind: str) -> None:
        """A rectangle by its top left corner. `kind` is a class of STYLE."""
        (x, y), (width, height) = at, size
        where = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self._body.append(f'<rect class="{kind}" {where} rx="8"/>')

    def box(self, at: Point, size: Point, name: str, *notes: str, kind: str = "box") -> None:
        """A rectangle with a name and notes below it, centred."""
        self.rectangle(at, size, kind)
        middle, top = at[0] + size[0] / 2, at[1] + size[1] / 2 + 5 - 8 * len(notes)
        self.text((middle, top), name, kind="name")
        for place, note in enumerate(notes, 1):
            self.text((middle, top + 17 * place), note, kind="small")

    def text(self, at: Point, text: str, anchor: Anchor = "middle", kind: str = "") -> None:
        """One line of text; `at` is on its base line."""
        style = f' class="{kind}"' if kind else ""
        self._body.append(
            f'<text{style} x="{at[0]:g}" y="{at[1]:g}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def line(self, points: Sequence[Point], kind: str = "line", *, arrow: bool = True) -> None:
        """A line through points, with an arrow at its end unless `arrow` is False."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        tip = ' marker-end="url(#tip)"' if arrow else ""
        self._body.append(f'<polyline class="{kind}" points="{path}"{tip}/>')

    def source(self) -> str:
        """The SVG."""
        return "\n".join([*self._head, *self._body, "</svg>"]) + "\n"
