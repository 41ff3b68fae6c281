"""The sampler `Branching`: expected improvement per step that must still be trained."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dasktune.algos.base import Proposal
from dasktune.algos.branching.candidates import different
from dasktune.algos.branching.model import improvements
from dasktune.algos.branching.price import Prices
from dasktune.algos.observations import Observed
from dasktune.algos.observing import ObservingSource
from dasktune.algos.samplers import Sampler
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant
from dasktune.sequences import Sequence as ValueSequence
from dasktune.sequences.values import Arguments
from dasktune.space import Branch, Choice, Domain, Drawing, Family, Space
from dasktune.space.define_by_run import SpaceLike
from dasktune.types import Step, TrialState

Array = NDArray[Any]


class Branching(Sampler):
    """A sampler that prefers late changes of known trials, for as long as they pay.

    In a stage tree the price of a trial is the number of its steps that no other trial has in
    common with it. A trial that changes the learning rate at step 45 of 60 costs 15 steps if
    the first 45 are known, a new learning rate from the start costs 60. The sampler proposes
    the candidate with the largest expected improvement per step of its price. A Gaussian process
    over the values at each step predicts the loss, so that trials with equal values are
    known to be alike, whatever family their sequences are of.

    **The rule of exploration.** Improvement per step alone would be content with cheap twigs of
    the first trunk. So the share `explore` of all steps goes to proposals that ignore prices.
    Such a proposal has the largest expected improvement, whether it begins a new trunk or not.
    Until `startup` trials have reported, proposals are drawn at random, and count as such. After
    that, a proposal ignores prices if such proposals have at most that share of the steps so far.
    The papers below keep
    exploration alive by other means: LaMBO by sampling from a tree of arms, CArBO by an exponent of
    the price that falls to 0 with the budget, which a sampler does not know.

    Prices are those within the tuner's own trials. PBT asks it for the members that it
    samples; the copies of PBT are no proposals.

    Parameters
    ----------
    explore
        The part of the steps of proposals that ignore prices, above 0; 1 ignores them always.
    startup
        Number of trials that must have reported before the model is used.

    Raises
    ------
    ConfigurationError
        If an argument is out of its range. When a tuner gives it a space: if a function
        defines the space, or if no hyper-parameter of it changes with the step.

    References
    ----------
    Lin et al., "Bayesian Optimization over Multi-Stage Pipelines with Switching Costs" (LaMBO),
    2021. Lee et al., "Cost-aware Bayesian Optimization" (CArBO), 2020. Snoek et al., "Practical
    Bayesian Optimization of Machine Learning Algorithms", section 3.2: improvement per second.

    Examples
    --------
    >>> import dasktune as dt
    >>> from dasktune.sequences import MultiStep
    >>> decays = dt.Family(MultiStep, init=[0.1, 0.3], milestones=[[30], [45]], gamma=0.1)
    >>> tuner = dt.algos.Random(
    ...     dt.Space(lr=decays), trials=4, max_steps=60, sampler=Branching(startup=1)
    ... )
    >>> found = dt.simulate(tuner, lambda values, step: values["lr"] / step)
    >>> len(found.trials)
    4
    """

    def __init__(self, *, explore: float = 0.5, startup: int = 2) -> None:
        check = Arguments("Branching")
        self.explore = check.real("explore", explore)
        if not check.problems and not 0 < self.explore <= 1:
            check.add(f"explore must be > 0 and <= 1, got {explore!r}")
        self.startup = check.whole("startup", startup)
        check.refuse()

    def source(self, space: SpaceLike, seed: int) -> BranchingSource:
        """Return a source for a space whose hyper-parameters change with the step."""
        if not isinstance(space, Space):
            raise ConfigurationError(
                f"Branching: space must be a dasktune.Space, got {space!r}, "
                "which is not known before it runs"
            )
        if not any(_changes(domain) for _, domain in space.dimensions):
            raise ConfigurationError(
                "Branching: some hyper-parameter must be a sequence that changes with the step, "
                f"got {', '.join(space.names)} without one: every trial would cost all its steps; "
                "use a sampler of Optuna"
            )
        return BranchingSource(space, self, seed)


def _changes(option: object) -> bool:
    """Return whether an option, or a point of a domain, may change with the step."""
    match option:
        case Family():
            return True
        case Choice():
            return any(map(_changes, option.options))
        case Branch():
            return _changes(option.name) or any(_changes(inner) for _, inner in option.dimensions)
        case Domain() | Constant():
            return False
    return isinstance(option, ValueSequence)


class BranchingSource(ObservingSource):
    """Proposes with a `Branching` sampler.

    The next proposal depends only on the proposals and reports so far.

    Parameters
    ----------
    space
        The space.
    sampler
        Its arguments count.
    seed
        Decides the draws.
    """

    def __init__(self, space: Space, sampler: Branching, seed: int) -> None:
        super().__init__(space, seed)
        self._explore, self._startup = sampler.explore, sampler.startup
        self.prices = Prices()

    def identity(self) -> object:
        """Return class and arguments."""
        return {"class": "Branching", "explore": self._explore, "startup": self._startup}

    def restore(self, snapshot: object) -> None:
        """Continue with the proposals and reports of a snapshot."""
        super().restore(snapshot)
        self.prices = Prices()

    def propose(self, trial: int) -> Proposal:
        """Return the point of the best candidate, or a random one before the model is used."""
        rng = np.random.default_rng((self._seed, trial))
        drawn = self._space.pick(Drawing(rng))
        known, losses, pending = self._known()
        if len(known) < self._startup:
            return {"point": dict(drawn.point)}
        # Without a report of its own trials it compares earlier ones at the last step of any.
        earlier = max((step for each in known for step in each.losses), default=1)
        level = self._observed.level(self._startup) or earlier
        self._store()
        best_first = [known[place].point for place in np.argsort(losses, kind="stable")]
        candidates = [
            (each, price)
            for each in different(self._space, drawn, best_first, rng)
            if (price := self.prices.price(each.sequences, level))
        ]
        if not candidates:
            return {"point": dict(drawn.point)}
        improvement = improvements(
            [(each.sequences, level) for each in known],
            losses,
            [(each.sequences, level) for each in pending],
            [(each.sequences, level) for each, _ in candidates],
        )
        prices = np.array([price for _, price in candidates], float)
        ignores = self._ignores_prices(level)
        best = int(np.argmax(improvement if ignores else improvement / prices))
        configuration, price = candidates[best]
        notes = {"steps": price, "ignores_prices": ignores}
        return {"point": dict(configuration.point), "notes": notes}

    def _ignores_prices(self, level: Step) -> bool:
        """Return whether the next proposal ignores prices, by the rule of exploration.

        A trial without notes was drawn at random, or queued by a user: it costs all its steps.
        """
        notes = [each.notes for each in self._observed.trials if each.trial is not None]
        steps = [note.get("steps", level) for note in notes]
        ignoring = [note.get("ignores_prices", True) for note in notes]
        of_those = sum(number for number, ignores in zip(steps, ignoring, strict=True) if ignores)
        return bool(of_those <= self._explore * sum(steps))

    def _known(self) -> tuple[list[Observed], list[float], list[Observed]]:
        """Return the trials with a loss at the level, their losses, and those without."""
        trials = self._observed.trials
        known, losses, pending = [], [], []
        for each, outcome in zip(trials, self._observed.outcomes(self._startup), strict=True):
            if outcome.state is TrialState.COMPLETE:
                known.append(each)
                losses.append(outcome.losses[0])
            elif outcome.state is TrialState.RUNNING:
                pending.append(each)
        return known, losses, pending

    def _store(self) -> None:
        """Note how far trials are trained: one that has not reported, to the first step of any."""
        trials = [(each.trial, each) for each in self._observed.trials]
        own = [(number, each) for number, each in trials if number is not None]
        first = min((min(each.losses) for _, each in own if each.losses), default=0)
        for number, each in own:
            if each.losses or not each.failed:
                self.prices.store(number, each.sequences, max(each.losses, default=first))
