"""Successive halving, rung by rung."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from dasktune.algos.rungs import Halving
from dasktune.algos.sampled import Budget, Options
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SHAOptions(Options):
    """The arguments of `SHA`; `trials` are those of one bracket."""

    max_steps: Step
    min_steps: Step | None
    eta: int
    trials: int
    s: int
    brackets: int


class SHA(SynchronousTuner):
    """Trains all trials a little, and the best ``1/eta`` of each rung to the next one.

    A rung waits for all its trials. A failed trial counts as the last of its rung; NaN and
    infinite values are never promoted, so that fewer trials may go on. With several
    `brackets`, a further one begins whenever workers have nothing to do.

    Parameters
    ----------
    space, max_steps, seed, sampler
        As for `dasktune.algos.sampled.SampledTuner`.
    trials
        n: number of configurations that begin in a bracket.
    min_steps, eta
        As for `dasktune.algos.brackets.BracketTuner`.
    s
        The minimum early-stopping rate: the number of rungs left out from the bottom.
    brackets
        The number of brackets, each with `trials` configurations of its own.

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
    options: SHAOptions

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
        budget = Budget.checked(check, trials, max_steps, seed)
        rate = check.whole("s", s, at_least=0)
        halving = Halving.checked(
            check, trials=trials, max_steps=max_steps, min_steps=min_steps, eta=eta, brackets=[rate]
        )
        options = SHAOptions(
            max_steps=budget.max_steps,
            min_steps=halving.min_steps,
            eta=halving.eta,
            trials=budget.trials,
            s=rate,
            brackets=check.whole("brackets", brackets),
        )
        if not check.problems:
            (bracket,) = halving.layout(budget.trials)
            self._schedule = halved(bracket.steps, budget.trials, halving.eta)
        budget = replace(budget, trials=budget.trials * options.brackets)
        super().__init__(space, budget, options, sampler=sampler, check=check)

    def schedule(self, index: int, left: int) -> Schedule:
        """Return the rungs, which are the same in every bracket."""
        return self._schedule
