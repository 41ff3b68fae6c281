"""Hyperband: brackets of successive halving in turn, from aggressive to cautious."""

from __future__ import annotations

from dasktune.algos.asha import ASHA
from dasktune.algos.rungs import Bracket, Halving
from dasktune.algos.sampled import Budget
from dasktune.algos.sha import halved
from dasktune.algos.synchronous import Schedule, SynchronousTuner
from dasktune.sequences.values import Arguments
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Decision, Step


def loop(steps: tuple[Step, ...], eta: int) -> tuple[Bracket, ...]:
    """Return the brackets of one loop, the most aggressive first.

    Parameters
    ----------
    steps
        The rungs of the first.
    eta
        One of `eta` trials is promoted.

    References
    ----------
    Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization"
    (JMLR 2018), Algorithm 1: ``n = ceil((s_max + 1) / (k + 1) * eta**k)`` for the bracket
    with k promotions, which is their s; here brackets count from the other end.

    Examples
    --------
    >>> [bracket.width for bracket in loop((1, 3, 9, 27, 81), eta=3)]
    [81, 34, 15, 8, 5]
    """
    brackets = [steps[at:] for at in range(len(steps))]
    return tuple(
        Bracket(steps=rungs, width=-(-len(steps) * eta ** (len(rungs) - 1) // len(rungs)))
        for rungs in brackets
    )


class Hyperband(SynchronousTuner):
    """Loops through brackets of SHA until `trials` have begun.

    A bracket is as in `SHA`. The next one begins when the brackets before it leave workers
    without work. The last bracket of a loop trains all its trials to `max_steps`; after it
    comes the first again. The very last bracket is cut to the trials that are left. If they
    are too few for one to reach `max_steps` from its base rung, they begin at the first rung
    from which one can.

    Parameters
    ----------
    space, max_steps, seed, sampler
        As for `dasktune.algos.sampled.SampledTuner`.
    trials
        Number of configurations to try in all: it ends the tuner.
    min_steps, eta
        As for `dasktune.algos.brackets.BracketTuner`; the first bracket decides which rungs
        are left out.

    Raises
    ------
    ConfigurationError
        If a number is too small, `min_steps` is above `max_steps`, or there are too few
        trials for the first bracket: all at once, with the number that is enough.

    References
    ----------
    Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization"
    (JMLR 2018), Algorithm 1.

    Examples
    --------
    >>> from dasktune.space import Float, Space
    >>> space = Space(lr=Float(0.01, 1, log=True))
    >>> tuner = Hyperband(space, trials=143, max_steps=81, min_steps=1, eta=3)
    >>> tuner.schedule(1, left=62)
    ((3, 34), (9, 11), (27, 3), (81, 1))
    """

    state = ("_brackets", "_rungs")
    options: Halving
    _rungs: tuple[Step, ...]

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        min_steps: Step | None = None,
        eta: int = 4,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments(type(self).__name__)
        budget = Budget.checked(check, trials, max_steps, seed)
        halving = Halving.checked(
            check, trials=trials, max_steps=max_steps, min_steps=min_steps, eta=eta
        )
        super().__init__(space, budget, halving, sampler=sampler, check=check)

    def begin(self) -> None:
        """Begin without a bracket."""
        super().begin()
        self._rungs = self.options.layout(self.trials)[0].steps

    def schedule(self, index: int, left: int) -> Schedule:
        """Return the rungs of a bracket, cut to the trials that are left."""
        eta, brackets = self.options.eta, loop(self._rungs, self.options.eta)
        bracket = brackets[index % len(brackets)]
        bracket = Bracket(steps=bracket.steps, width=min(bracket.width, left))
        while bracket.width < bracket.needs(eta):
            bracket = Bracket(steps=bracket.steps[1:], width=bracket.width)
        return halved(bracket.steps, bracket.width, eta)

    def grow(self, trials: int) -> list[Decision]:
        """Register the added trials; they begin when workers are free."""
        return self.ask(0)


class AsyncHyperband(ASHA):
    """Loops through brackets of ASHA: new trials fill one after the other, again and again.

    In a loop each bracket gets its number of new trials, as in `Hyperband`; after the last
    bracket comes the first again, whose rungs keep all that have reported there. Promotions
    happen in every bracket at any time, as in `ASHA`. The loop may end anywhere: the last
    trial to begin competes with all earlier trials of its bracket.

    Parameters
    ----------
    space, trials, max_steps, min_steps, eta, seed, sampler
        As for `Hyperband`.

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", section 3.2
    (asynchronous Hyperband, by looping).

    Examples
    --------
    >>> from dasktune.space import Float, Space
    >>> tuner = AsyncHyperband(Space(lr=Float(0, 1)), trials=40, max_steps=9, eta=3)
    >>> [(bracket.steps, bracket.width) for bracket in tuner.layout()]
    [((1, 3, 9), 9), ((3, 9), 5), ((9,), 3)]
    """

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        min_steps: Step | None = None,
        eta: int = 4,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        super().__init__(
            space,
            trials=trials,
            max_steps=max_steps,
            min_steps=min_steps,
            eta=eta,
            brackets="aggressive",
            seed=seed,
            sampler=sampler,
        )

    def layout(self) -> tuple[Bracket, ...]:
        """Return the brackets; their widths are those of one loop."""
        return loop(self.options.layout(self.trials)[0].steps, self.options.eta)

    def place(self, trial: int) -> int:
        """Return the bracket whose turn it is in the loop."""
        widths = [bracket.width for bracket in self.brackets]
        position = trial % sum(widths)
        return next(at for at in range(len(widths)) if position < sum(widths[: at + 1]))

    def grow(self, trials: int) -> list[Decision]:
        """Continue the loop."""
        return self.ask(0)
