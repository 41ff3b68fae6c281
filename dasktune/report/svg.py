"""SVG as text: escaped elements, and drawings for files, pages and notebooks.

Colours are classes of ``marks.css``: Okabe and Ito's palette, which colour-blind people can
distinguish, and one ramp of blues, each with a light and a dark variant.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Svg:
    """A drawing; a notebook shows it as the last value of a cell.

    Parameters
    ----------
    marks
        The elements, as SVG text.
    width, height
        Size in CSS pixels; the drawing scales to the available room.
    label
        Description for screen readers.
    """

    marks: str
    width: float
    height: float
    label: str

    def __html__(self) -> str:
        """Return an element for a page that includes ``marks.css``."""
        return (
            f'<svg class="dt" viewBox="0 0 {xy(self.width)} {xy(self.height)}" '
            f'width="{xy(self.width)}" height="{xy(self.height)}" role="img" '
            f'aria-label="{escape(self.label)}">{self.marks}</svg>'
        )

    def __str__(self) -> str:
        """Return the text of an SVG file, with colours and a background."""
        size = f'width="{xy(self.width)}" height="{xy(self.height)}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="dt" {size} '
            f'viewBox="0 0 {xy(self.width)} {xy(self.height)}">'
            f"<title>{escape(self.label)}</title><style>{marks_css()}</style>"
            f'<rect class="paper" {size} rx="8"/>{self.marks}</svg>\n'
        )

    def _repr_svg_(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return str(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write an SVG file, and return its path."""
        target = Path(path)
        target.write_text(str(self), encoding="utf-8", errors="backslashreplace")
        return target


def marks_css() -> str:
    """Return the style sheet of all drawings."""
    return (files("dasktune.report") / "marks.css").read_text(encoding="utf-8")


def tag(name: str, *content: str, **attributes: object) -> str:
    """Return an element; attributes are escaped, content is SVG text already.

    An attribute's ``_`` stands for ``-``, and one at the end is dropped: ``class_``.
    Floats are written with two decimals at most; None leaves the attribute out.

    Examples
    --------
    >>> tag("rect", x=1.0, y=2 / 3, class_="a<b", rx=None)
    '<rect x="1" y="0.67" class="a&lt;b"/>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(content)
    return f"<{name}{written}>{inner}</{name}>" if inner else f"<{name}{written}/>"


def text(x: float, y: float, words: str, **attributes: object) -> str:
    """Return a line of text, escaped."""
    return tag("text", escape(words), x=x, y=y, **attributes)


def title(words: str) -> str:
    """Return the escaped tooltip of the element around it."""
    return f"<title>{escape(words)}</title>"


def line(points: Iterable[tuple[float, float]]) -> str:
    """Return the path data of a line through points.

    Examples
    --------
    >>> line([(0, 1), (2, 1.5)])
    'M0 1L2 1.5'
    """
    return "M" + "L".join(f"{xy(x)} {xy(y)}" for x, y in points)


def legend(entries: Iterable[tuple[str, str]], x: float, y: float = 10.0) -> tuple[str, float]:
    """Return a row of boxes with their names from ``(class, name)``, and the next free x."""
    marks = []
    for look, name in entries:
        marks.append(tag("rect", x=x, y=y, width=22.0, height=12.0, rx=2.0, class_=look))
        marks.append(text(x + 28, y + 10, name, class_="tick"))
        x += 48 + 6.3 * len(name)
    return "".join(marks), x


def line_legend(entries: Iterable[tuple[str, str]], x: float) -> tuple[str, float]:
    """Return a row of lines with their names from ``(class, name)``, and the next free x."""
    marks = []
    for look, name in entries:
        marks.append(tag("path", d=f"M{x:.0f} 16h22", class_=look))
        marks.append(text(x + 28, 20, name, class_="tick"))
        x += 48 + 6.3 * len(name)
    return "".join(marks), x


def xy(value: float) -> str:
    """Return a coordinate with two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _attribute(value: object) -> str:
    return xy(value) if isinstance(value, float) else escape(str(value))
