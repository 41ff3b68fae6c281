"""Freeze-thaw: new configurations and paused trials compete for each worker."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from dasktune.algos.base import Proposal
from dasktune.algos.branching.continuing import ContinuingSource
from dasktune.algos.rungs import rungs
from dasktune.algos.sampled import Budget, Options, SampledTuner
from dasktune.sequences.values import Arguments
from dasktune.space import MOST_GRID_POINTS, Space
from dasktune.types import Decision, Extend, Finish, Report, Step

RUNGS: Final = 3
"""Number of rungs without `min_steps`: a trial is paused twice before its end."""

NOTHING: Final[Proposal] = {"trial": None}
"""The proposal in the event log if no candidate is left that may be trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeThawOptions(Options):
    """The arguments of `FreezeThaw`."""

    budget: Step
    min_steps: Step | None
    eta: int
    explore: float
    startup: int


class FreezeThaw(SampledTuner):
    """Pauses each trial at rungs; trains the candidate that promises most per step.

    For each free worker a model compares new configurations with the paused trials: by the
    expected improvement at `max_steps`, per step that must be trained until then. Of the winner,
    only the steps to its next rung are trained, so that a trial which disappoints costs little.
    A new configuration costs the steps after its last common step with any trial, and is
    paused at the first rung after that. So the tuner begins several unlike trials,
    pauses poor ones early, and tries late changes of good ones.

    The model is that of `dasktune.samplers.Branching`: a Gaussian process over the values of the
    hyper-parameters so far, here at each rung where a trial has reported. Without sequences that
    change, each new trial costs all its steps.

    The share `explore` of the steps goes to candidates with the largest improvement at any
    price. Trials whose last loss is infinite stay paused. Each choice is an input in the event
    log: a replay repeats it. The tuner ends when no candidate fits into the rest of the budget.

    Parameters
    ----------
    space, seed
        As for `dasktune.algos.sampled.SampledTuner`.
    budget
        Steps that are trained in all; steps that trials share count once.
    max_steps
        The step that the best trials are trained to.
    min_steps
        The first rung. With None there are three rungs: with eta 2 the first is a quarter of
        `max_steps`.
    eta
        The factor between two rungs.
    explore
        The share of the steps whose choice ignores prices, at least 0 and at most 1.
    startup
        Number of trials that must have reported before the model is used.

    Raises
    ------
    ConfigurationError
        If a number is out of its range, `budget` is below `max_steps`, or a sequence ends before
        `max_steps`: all at once. If a function defines the space.

    References
    ----------
    Swersky, Snoek and Adams, "Freeze-Thaw Bayesian Optimization", 2014: a model chooses between
    new and paused trials. Rakotoarison et al., "In-Context Freeze-Thaw Bayesian Optimization for
    Hyperparameter Optimization" (ifBO), 2024.

    Examples
    --------
    >>> import dasktune as dt
    >>> from dasktune.sequences import MultiStep
    >>> decays = dt.Family(MultiStep, init=[0.1, 0.3], milestones=[[30], [45]], gamma=0.1)
    >>> tuner = FreezeThaw(dt.Space(lr=decays), budget=200, max_steps=60)
    >>> tuner.steps
    (15, 30, 60)
    >>> ran = dt.simulate(tuner, lambda values, step: values["lr"] / step)
    >>> ran.summary()["steps_executed"] <= 200
    True
    """

    growing: ClassVar[bool] = False
    limits_trials: ClassVar[bool] = True
    state = ("open", "_reached", "_trained", "_explored", "_choices")
    options: FreezeThawOptions
    source: ContinuingSource
    """Makes its choices."""
    open: dict[int, Step]
    """By trial that is being trained: the step where it stops."""
    _reached: dict[int, Step]
    """By trial: the step that it was last extended to."""
    _trained: Step
    """Steps of all trials, each once."""
    _explored: Step
    """Steps of choices that ignored prices, each once."""
    _choices: int

    def __init__(
        self,
        space: Space,
        *,
        budget: Step,
        max_steps: Step,
        min_steps: Step | None = None,
        eta: int = 2,
        explore: float = 0.5,
        startup: int = 2,
        seed: int = 0,
    ) -> None:
        check = Arguments(type(self).__name__)
        size = Budget.checked(check, budget, max_steps, seed)
        # Each trial takes a step at least: there may be more steps than trials.
        size = replace(size, trials=min(size.trials, MOST_GRID_POINTS))
        options = FreezeThawOptions(
            budget=check.whole("budget", budget),
            min_steps=None if min_steps is None else check.whole("min_steps", min_steps),
            eta=check.whole("eta", eta, at_least=2),
            explore=check.real("explore", explore),
            startup=check.whole("startup", startup),
        )
        if not isinstance(space, Space):
            check.add(f"space must be a dasktune.Space, got {space!r}")
        if not check.problems:
            _check(check, options, size.max_steps)
        check.refuse()
        self.steps = rungs(size.max_steps, options.min_steps, options.eta, RUNGS)
        """The rungs."""
        source = ContinuingSource(
            space, size.seed, startup=options.startup, max_steps=size.max_steps
        )
        super().__init__(space, size, options, sampler=source, check=check)

    def begin(self) -> None:
        """Begin without trials."""
        self.open, self._reached = {}, {}
        self._trained = self._explored = self._choices = 0

    def derive(self) -> None:
        """Tell the source which steps are trained."""
        for trial, step in self._reached.items():
            self.source.train(trial, step)

    @property
    def most_steps(self) -> Step:
        """The budget."""
        return self.options.budget

    def ask(self, capacity: int) -> list[Decision]:
        """Return the most promising training for each free worker."""
        decisions: list[Decision] = []
        for _ in range(capacity):
            proposal = self._next()
            if proposal is None or proposal == NOTHING:
                if decisions or not self.open:
                    self._proposed.append(NOTHING)
                break
            decisions += self._carried_out(proposal)
        return decisions or ([] if self.open else [Finish(reason="its budget is used up")])

    def on_report(self, report: Report) -> list[Decision]:
        """Pause the trial: `ask` compares it with all others."""
        if self.open.get(report.trial) == report.step:
            del self.open[report.trial]
        return []

    def on_failure(self, trial: int) -> list[Decision]:
        """Forget the trial: its steps stay counted."""
        self.open.pop(trial, None)
        return []

    def _next(self) -> Proposal | None:
        """Return a user's point, the choice that the event log holds, or a new choice."""
        left = self.options.budget - self._trained
        queued = self._queue.popleft() if self._queue and left >= self.max_steps else None
        if self._fed:
            return self._fed.popleft()
        if queued is not None:
            return {"point": queued}
        ignores = self._explored <= self.options.explore * self._trained
        return self.source.choose(self._choices, self.open, left, ignores_prices=ignores)

    def _carried_out(self, proposal: Proposal) -> list[Decision]:
        """Return the decisions of a proposal."""
        match proposal:
            case {"trial": int(trial)}:
                register = []
                self._proposed.append(proposal)
            case _:
                register = [self.take(proposal)]
                trial = register[0].trial
        self._choices += 1
        at = self.max_steps - self.source.price(trial, self.max_steps)
        until = self.steps[min(bisect_right(self.steps, at), len(self.steps) - 1)]
        price = self.source.price(trial, until)
        self._trained += price
        self._explored += price * _ignores_prices(proposal)
        self.source.train(trial, until)
        self.open[trial] = self._reached[trial] = until
        return [*register, Extend(trial=trial, until=until, priority=-self._choices)]


def _ignores_prices(proposal: Proposal) -> bool:
    """Return whether a choice ignored prices; a point of a user counts as such."""
    match proposal:
        case {"notes": {"ignores_prices": bool(ignores)}}:
            return ignores
    return True


def _check(check: Arguments, options: FreezeThawOptions, max_steps: Step) -> None:
    if options.budget < max_steps:
        check.add(f"budget must be >= max_steps ({max_steps}), got {options.budget}")
    if not 0 <= options.explore <= 1:
        check.add(f"explore must be >= 0 and <= 1, got {options.explore}")
    if options.min_steps is not None and options.min_steps > max_steps:
        check.add(f"min_steps must be <= max_steps ({max_steps}), got {options.min_steps}")
