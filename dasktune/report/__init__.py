"""Drawings, texts about a study, and the live display of a run."""

from dasktune.report.fan import draw_fan
from dasktune.report.sequence_plot import plot_sequence
from dasktune.report.svg import Svg
from dasktune.report.tree_svg import draw_tree

__all__ = ["Svg", "draw_fan", "draw_tree", "plot_sequence"]
