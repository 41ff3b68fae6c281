"""What a space costs, before anything runs."""

from __future__ import annotations

from dasktune.algos.grid import Filter, Grid
from dasktune.graph.cost import Cost, cost_of
from dasktune.graph.saves import SavePolicy
from dasktune.space import Space
from dasktune.types import Step


def preview(
    space: Space,
    max_steps: Step,
    workers: int = 1,
    *,
    filter: Filter | None = None,
    checkpoint_every: int | None = None,
) -> Cost:
    """Return what training every configuration of a space to `max_steps` costs.

    Parameters
    ----------
    space
        A space that can be walked as a grid.
    max_steps
        Steps of each trial.
    workers
        For the lower bound on the wall time.
    filter
        As for `dasktune.algos.Grid`.
    checkpoint_every
        As for `dasktune.create_study`.

    Examples
    --------
    >>> from dasktune.sequences import Constant, MultiStep
    >>> from dasktune.space import Space
    >>> space = Space(lr=[Constant(0.1), MultiStep(0.1, milestones=[30], gamma=0.1)])
    >>> print(preview(space, max_steps=60, workers=2))
    2 trials ask for 120 steps; 90 are unique (75%)
    merge rate p = 1.333
    at least 60.0 steps of wall time on 2 workers; longest trial 60 steps
    3 checkpoints
    """
    tuner = Grid(space, max_steps=max_steps, filter=filter)
    trials = ((one.sequences, max_steps) for one in tuner.configurations)
    return cost_of(trials, workers=workers, saves=SavePolicy(every=checkpoint_every))
