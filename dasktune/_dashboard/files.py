"""The files of the page: its own, and those of BokehJS."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from dasktune.errors import ConfigurationError

KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
"""Types of the files by their ending."""


def page_files() -> dict[str, Path]:
    """Return the page's own files by the names that it asks for."""
    static = Path(str(files("dasktune._dashboard"))) / "static"
    marks = Path(str(files("dasktune.report"))) / "marks.css"
    return {path.name: path for path in [*static.iterdir(), marks] if path.suffix in KINDS}


def bokeh_files() -> dict[str, Path]:
    """Return the files of BokehJS by the names that the page asks for.

    Raises
    ------
    ConfigurationError
        If Bokeh is not installed.
    """
    try:
        import bokeh
    except ImportError:
        raise ConfigurationError(
            "the live page needs Bokeh: pip install 'dasktune[dashboard]'"
        ) from None
    folder = Path(bokeh.__file__).parent / "server" / "static" / "js"
    return {name: folder / name for name in ("bokeh.min.js", "bokeh-api.min.js")}
