"""Training in parts: at each milestone a number of trials is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from dasktune.algos.sampled import Budget, Options
from dasktune.algos.synchronous import Schedule, SynchronousTuner
from dasktune.sequences.values import Arguments
from dasktune.space import Space
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class MilestonesOptions(Options):
    """The arguments of `Milestones`; the steps of `keep` are text."""

    keep: Mapping[str, int]


class Milestones(SynchronousTuner):
    """Trains all trials to the first milestone, the kept ones to the next, and so on.

    A milestone waits for all its trials. Failed trials, and NaN and infinite values, are not
    kept, so that fewer trials may go on.

    Parameters
    ----------
    space, seed, sampler
        As for `dasktune.algos.sampled.SampledTuner`.
    keep
        By step: how many of the best trials are kept there.
    max_steps
        The step that the trials kept at the last milestone are trained to.
    trials
        Number of configurations to try; None for all points of a grid, without a sampler.

    Raises
    ------
    ConfigurationError
        If a number is too small, a milestone is not below `max_steps`, more are kept than
        there are, or the space has no finite grid.

    References
    ----------
    Shin et al., "Hippo: Taming Hyper-parameter Optimization of Deep Learning with Stage
    Trees", Figure 11.

    Examples
    --------
    Of eight, train four beyond step 5:

    >>> space = Space(lr=[0.1, 0.2, 0.3, 0.4], momentum=[0.0, 0.9])
    >>> Milestones(space, keep={5: 4}, max_steps=10).schedule(0, left=8)
    ((5, 8), (10, 4))
    """

    growing: ClassVar[bool] = False

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        keep: Mapping[Step, int],
        max_steps: Step,
        trials: int | None = None,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments(type(self).__name__)
        if trials is None:
            trials = _grid_size(check, space, sampler)
            sampler = sampler or "grid"
        counts = _counts(check, keep)
        budget = Budget.checked(check, trials, max_steps, seed)
        if not check.problems:
            _check_counts(check, counts, budget)
        self._schedule = tuple(
            zip((*counts, budget.max_steps), (budget.trials, *counts.values()), strict=True)
        )
        options = MilestonesOptions(keep={str(step): count for step, count in counts.items()})
        super().__init__(
            space, budget, options, sampler=None if check.problems else sampler, check=check
        )

    def schedule(self, index: int, left: int) -> Schedule:
        """Return the milestones of the only bracket."""
        return self._schedule


def _grid_size(check: Arguments, space: object, sampler: object) -> int:
    if sampler not in (None, "grid"):
        check.add("trials must be given with a sampler, got None")
    elif not isinstance(space, Space) or space.size is None:
        check.add("trials must be given unless the space is a grid, got None")
    else:
        return space.size
    return 1


def _counts(check: Arguments, keep: Mapping[Step, int]) -> dict[Step, int]:
    if not isinstance(keep, Mapping):
        check.add(f"keep must be a mapping of step to number, got {keep!r}")
        return {}
    counts = {
        check.whole("each step of keep", step): check.whole(f"keep[{step!r}]", count)
        for step, count in keep.items()
    }
    return dict(sorted(counts.items()))


def _check_counts(check: Arguments, counts: Mapping[Step, int], budget: Budget) -> None:
    for step in counts:
        if step >= budget.max_steps:
            check.add(f"each step of keep must be < max_steps ({budget.max_steps}), got {step}")
    for before, kept in pairwise((budget.trials, *counts.values())):
        if kept > before:
            check.add(f"keep must not keep more than there are ({before}), got {kept}")
