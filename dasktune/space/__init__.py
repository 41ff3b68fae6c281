"""Search spaces: for each hyper-parameter the values and sequences that it may take.

A grid visits all configurations of a space; sampling draws some. A space is a value without
random state.

>>> Space(lr=Float(0.1, 0.3, step=0.1), batch_size=[64, 128]).size
6
"""

from dasktune.space.branch_needs import contradictions, with_branches
from dasktune.space.define_by_run import DefinedByRun
from dasktune.space.domains import Choice, Chooser, Domain, Drawing, Family, Float, Int
from dasktune.space.space import MOST_GRID_POINTS, Branch, Configuration, Space

__all__ = [
    "MOST_GRID_POINTS",
    "Branch",
    "Choice",
    "Chooser",
    "Configuration",
    "DefinedByRun",
    "Domain",
    "Drawing",
    "Family",
    "Float",
    "Int",
    "Space",
    "contradictions",
    "with_branches",
]
