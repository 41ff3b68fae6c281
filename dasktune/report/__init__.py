"""Drawings, texts about a study, and the live display of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dasktune._lazy import method_of
from dasktune.report.fan import draw_fan
from dasktune.report.sequence_plot import plot_sequence
from dasktune.report.svg import Svg
from dasktune.report.tree_svg import draw_tree

__all__ = ["Svg", "draw_fan", "draw_tree", "plot_sequence", "write_report"]

_write_report = method_of("dasktune._dashboard.saved:write_report")


def write_report(study: Any, path: str | os.PathLike[str]) -> Path:
    """Write the report of a study to a file, as ``study.report(path)`` does; return its path."""
    written: Path = _write_report(study, path)
    return written
