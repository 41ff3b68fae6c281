"""Training in parts: at each milestone a number of trials is kept."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar

from dasktune.algos.synchronous import Schedule, SynchronousTuner
from dasktune.sequences.values import Arguments
from dasktune.space import Space
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Step


class Milestones(SynchronousTuner):
    """Trains everything to the first milestone, what is kept there to the next, and so on.

    A milestone waits for everyone. What fails, and what is NaN or infinite, is not kept:
    fewer go on where too few are left.

    Parameters
    ----------
    space
        What to draw from.
    keep
        How many trials are kept at which step; the best.
    max_steps
        How far those are trained that are kept at the last milestone.
    trials
        How many configurations to try; None for every one of a grid, without a sampler.
    seed
        Decides what is drawn.
    sampler
        Proposes configurations; None draws at random.

    Raises
    ------
    ConfigurationError
        If a number is too small, a milestone is not below `max_steps`, more are kept than
        there are, or the grid cannot be walked.

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
        last = check.whole("max_steps", max_steps)
        trials = check.whole("trials", trials)
        if not check.problems:
            _check_counts(check, counts, trials, last)
        self._schedule = tuple(zip((*counts, last), (trials, *counts.values()), strict=True))
        super().__init__(
            space,
            trials=trials,
            max_steps=last,
            seed=seed,
            sampler=None if check.problems else sampler,
            check=check,
            more={"keep": {str(step): count for step, count in counts.items()}},
        )

    def schedule(self, index: int, left: int) -> Schedule:
        """Return the milestones; there is one bracket."""
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
    found = {
        check.whole("each step of keep", step): check.whole(f"keep[{step!r}]", count)
        for step, count in keep.items()
    }
    return dict(sorted(found.items()))


def _check_counts(
    check: Arguments, counts: Mapping[Step, int], trials: int, max_steps: Step
) -> None:
    for step in counts:
        if step >= max_steps:
            check.add(f"each step of keep must be < max_steps ({max_steps}), got {step}")
    for before, kept in pairwise((trials, *counts.values())):
        if kept > before:
            check.add(f"keep must not keep more than there are ({before}), got {kept}")
