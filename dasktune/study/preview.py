"""The cost of training a whole space, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import overload

from dasktune.algos.grid import Filter, Grid
from dasktune.graph.cost import Cost, Costs, StudyTrials, cost_of, costs_of
from dasktune.graph.save_policy import SavePolicy
from dasktune.space import Space
from dasktune.types import Sequences, Step


@overload
def preview(
    space: Space,
    max_steps: Step,
    workers: int = 1,
    *,
    filter: Filter | None = None,
    checkpoint_every: int | None = None,
) -> Cost: ...


@overload
def preview(
    space: Iterable[Space],
    max_steps: Step,
    workers: int = 1,
    *,
    filter: Filter | None = None,
    checkpoint_every: int | None = None,
) -> Costs: ...


def preview(
    space: Space | Iterable[Space],
    max_steps: Step,
    workers: int = 1,
    *,
    filter: Filter | None = None,
    checkpoint_every: int | None = None,
) -> Cost | Costs:
    """Return the cost of training every configuration of a space to `max_steps` steps.

    Parameters
    ----------
    space
        A space with finitely many points; or several, one for each of several studies with the
        same trainer, config, data and training seed, which share their states.
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

    A space that is part of another adds nothing to train:

    >>> print(preview([space, Space(lr=[Constant(0.1)])], max_steps=60))
    2 studies ask for 180 steps; 90 are unique, 150 if they shared nothing
    merge rate q = 2.000; p = 1.333, 1.000
    """
    saves = SavePolicy(every=checkpoint_every)
    if isinstance(space, Space):
        return cost_of(_trials(space, max_steps, filter), workers=workers, saves=saves)
    studies = (StudyTrials(trials=_trials(each, max_steps, filter)) for each in space)
    return costs_of(studies, workers=workers, saves=saves)


def _trials(
    space: Space, max_steps: Step, filter: Filter | None
) -> tuple[tuple[Sequences, Step], ...]:
    tuner = Grid(space, max_steps=max_steps, filter=filter)
    return tuple((each.sequences, max_steps) for each in tuner.configurations)
