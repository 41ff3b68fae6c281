"""Successive halving, rung by rung."""

from __future__ import annotations

from typing import ClassVar

from dasktune.algos.rungs import Halving
from dasktune.algos.synchronous import Schedule, SynchronousTuner
from dasktune.sequences.values import Arguments
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Step


def halved(steps: tuple[Step, ...], width: int, eta: int) -> Schedule:
    """Return the rungs of a bracket in which `width` trials begin.

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", Algorithm 1:
    ``n_i = floor(n * eta**-i)``.

    Examples
    --------
    >>> halved((1, 3, 9), 9, eta=3)
    ((1, 9), (3, 3), (9, 1))
    """
    return tuple((step, width // eta**level) for level, step in enumerate(steps))


class SHA(SynchronousTuner):
    """Trains all trials a little, and of each rung the best ``1/eta`` to the next one.

    A rung waits for everyone in it. What fails counts as the last of its rung, and what is
    NaN or infinite is never promoted: fewer go on where too few are left. With several
    `brackets` a further one begins whenever there are workers that have nothing to do.

    Parameters
    ----------
    space
        What to draw from.
    trials
        n: how many configurations begin in a bracket.
    max_steps
        R: how far the best are trained.
    min_steps
        r: how far every trial is trained at least. If None, `max_steps` is divided by `eta`
        to at most five rungs, and the lowest are left out while `trials` are too few for
        one to reach `max_steps`.
    eta
        One of this many is promoted.
    s
        The minimum early-stopping rate: rungs that are left out from the bottom.
    brackets
        How many brackets of `trials` are run, each for itself.
    seed
        Decides what is drawn.
    sampler
        Proposes configurations; None draws at random.

    Raises
    ------
    ConfigurationError
        If a number is too small, `min_steps` is above `max_steps`, or `trials` are too few
        for `min_steps`: all at once, with the number that is enough.

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", Algorithm 1 and
    section 3.1 (synchronous SHA).

    Examples
    --------
    >>> from dasktune.space import Float, Space
    >>> space = Space(lr=Float(0.01, 1, log=True))
    >>> SHA(space, trials=448, max_steps=120, min_steps=15).schedule(0, left=448)
    ((15, 448), (60, 112), (120, 28))
    """

    growing: ClassVar[bool] = False

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        min_steps: Step | None = None,
        eta: int = 4,
        s: int = 0,
        brackets: int = 1,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments(type(self).__name__)
        check.whole("max_steps", max_steps)
        rate = check.whole("s", s, at_least=0)
        count = check.whole("brackets", brackets)
        halving = Halving.checked(
            check,
            trials=trials,
            max_steps=max_steps,
            min_steps=min_steps,
            eta=eta,
            brackets=[rate],
        )
        width = check.whole("trials", trials)
        if not check.problems:
            (only,) = halving.layout(width)
            self._schedule = halved(only.steps, width, halving.eta)
        super().__init__(
            space,
            trials=width * count,
            max_steps=max_steps,
            seed=seed,
            sampler=sampler,
            check=check,
            more={**halving.to_json(), "trials": width, "s": rate, "brackets": count},
        )

    def schedule(self, index: int, left: int) -> Schedule:
        """Return the rungs: those of every bracket."""
        return self._schedule
