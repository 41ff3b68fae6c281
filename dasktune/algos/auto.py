"""Auto: successive halving of which only the budget is given."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from dasktune.algos.rung import Rung
from dasktune.algos.rungs import rungs
from dasktune.algos.sampled import Budget, Options, SampledTuner
from dasktune.algos.state import Readers
from dasktune.sequences.values import Arguments
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Decision, Extend, Finish, Report, Step

PARTS: Final = 1024
"""The budget over the first rung: the most trials that can begin.

With eta 4 each of the five rungs up to ``budget / 4`` costs about as much as the others, so that
about 200 trials begin and one is trained to the top.
"""

FURTHEST: Final = 2**30
"""The step that no trial is trained beyond where only a budget of time is given."""

WHOLE_GRID: Final = "the last from which halving a whole grid stays within the budget"
"""The rule for the first rung of few configurations, as identities name it."""

SECONDS: Final = {"worker-seconds": 1, "worker-minutes": 60, "worker-hours": 3600}
"""Seconds of each unit of a budget of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoOptions(Options):
    """The arguments of `Auto`; one of the two budgets is None."""

    steps: Step | None
    worker_seconds: float | None
    eta: int
    first: str = WHOLE_GRID

    @property
    def budget(self) -> float:
        """The budget, in its own unit."""
        return float(self.steps or self.worker_seconds or math.inf)

    @classmethod
    def checked(cls, check: Arguments, budget: object, eta: object) -> AutoOptions:
        """Return the options; `check` keeps the problems."""
        steps, seconds = None, None
        text = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(\S+)\s*", str(budget))
        if isinstance(budget, int):
            steps = check.whole("budget", budget)
        elif isinstance(budget, str) and text and text[2] in SECONDS and float(text[1]) > 0:
            seconds = float(text[1]) * SECONDS[text[2]]
        else:
            units = ", ".join(SECONDS)
            check.add(
                f"budget must be steps, or text such as '200 worker-hours' ({units}), "
                f"got {budget!r}"
            )
        return cls(steps=steps, worker_seconds=seconds, eta=check.whole("eta", eta, at_least=2))


class Auto(SampledTuner):
    """Uses a budget up: trains many trials a little, and the best of them further and further.

    It is `ASHA` with one bracket that needs neither a number of trials nor a minimum. The rungs
    are the powers of `eta` below `max_steps`, and `max_steps`; trials begin at the first that
    costs a 1024th of the budget. A grid of few configurations begins higher: at the last rung
    from which halving all of them stays within the budget. As in ASHA, an arrival that brings a
    trial into the top ``1/eta`` of a rung promotes it, and promotions go before new trials.

    Where a grid has no more configurations, the budget that is left trains further trials
    deeper: the best one waiting at the rung of which the smallest part has been promoted.

    Parameters
    ----------
    space, seed, sampler
        As for `dasktune.algos.sampled.SampledTuner`.
    budget
        Steps that are trained in all, or text such as ``"200 worker-hours"``: the time that
        workers train, all together. Steps that a trial takes over from others count as its own.
        A trial is trained further only if what is left is enough for it.
    max_steps
        The step that no trial is trained beyond. If None, what one `eta`-th of the budget trains;
        of a budget of time, at the speed measured so far: then sequences that have an end are
        refused.
    eta
        One of `eta` trials is promoted.

    Raises
    ------
    ConfigurationError
        If a number is too small, the budget is no budget, or a sequence ends before
        `max_steps`: all at once.

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", Algorithm 2 and section
    3.3 (infinite horizon).

    Examples
    --------
    >>> from dasktune.space import Float, Space
    >>> Auto(Space(lr=Float(0.01, 1, log=True)), budget=20_000).steps
    (1, 4, 16, 64, 256, 1024, 4096, 5000)
    """

    timed: ClassVar[bool] = True
    growing: ClassVar[bool] = False
    limits_trials: ClassVar[bool] = True
    state = ("rungs", "open", "_levels", "_failed", "_used", "_trained")
    options: AutoOptions
    rungs: list[Rung]
    """By number: the reports at each rung."""
    open: set[int]
    """The trials under way."""
    _levels: dict[int, tuple[int, Step]]
    """By trial: the rung that it was extended to, and its last report."""
    _failed: set[int]
    _used: float
    """The part of the budget that is used up."""
    _trained: Step
    """Steps of all trials."""

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        budget: Step | str,
        max_steps: Step | None = None,
        eta: int = 4,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments(type(self).__name__)
        options = AutoOptions.checked(check, budget, eta)
        if max_steps is None:
            most = max(1, (options.steps or 1) // max(1, options.eta))
            max_steps = most if options.worker_seconds is None else FURTHEST
        size = Budget.checked(check, PARTS, max_steps, seed)
        self.steps = rungs(size.max_steps, 1, options.eta) if not check.problems else (1,)
        """The rungs."""
        super().__init__(space, size, options, sampler=sampler, check=check)

    def begin(self) -> None:
        """Begin with empty rungs."""
        self.rungs = [Rung(self.options.eta) for _ in self.steps]
        self.open, self._failed, self._levels = set(), set(), {}
        self._used, self._trained = 0.0, 0

    @property
    def readers(self) -> Readers:
        """The reader of rungs."""
        return {Rung: partial(Rung.from_json, self.options.eta)}

    @property
    def most_steps(self) -> Step | None:
        """The budget, if it is one of steps."""
        return self.options.steps

    @property
    def step_cost(self) -> float:
        """The mean cost of a step so far, as a part of the budget; 0 if nobody knows it yet."""
        if self.options.steps is not None:
            return 1.0 / self.options.budget
        return self._used / self._trained / self.options.budget if self._trained else 0.0

    @property
    def first(self) -> int:
        """The number of the rung that new trials begin at: a part of the budget, as known now."""
        if not (cost := self.step_cost):
            return 0
        last = self.top
        enough = (level for level in range(last) if self.steps[level] * cost * PARTS >= 1)
        first = next(enough, last)
        # Halving costs about as much at each rung as at the first.
        halved = (
            level
            for level in range(first + 1, last + 1)
            if self.trials * self.steps[level] * (last + 1 - level) * cost <= 1
        )
        return max(halved, default=first)

    @property
    def top(self) -> int:
        """The number of the highest rung: without a `max_steps`, what a part of the budget trains.

        It is the lowest while nobody knows how long a step takes.
        """
        if self.max_steps < FURTHEST:
            return len(self.steps) - 1
        cost, most = self.step_cost, 1 / self.options.eta
        within = (at for at, step in enumerate(self.steps) if 0 < step * cost <= most)
        return max(within, default=0)

    def ask(self, capacity: int) -> list[Decision]:
        """Return a new trial for each free worker, or what trains deeper if there is none."""
        decisions: list[Decision] = []
        for _ in range(capacity):
            first = self.first
            if self.left and self._affords(self.steps[first]):
                register = self.draw()
                extend = self._extend(register.trial, first, priority=-register.trial)
                decisions += [register, extend]
            elif deeper := self._deepen():
                decisions += deeper
            else:
                break
        return decisions or ([] if self.open else [Finish(reason="its budget is used up")])

    def on_report(self, report: Report) -> list[Decision]:
        """Return the promotion after an arrival."""
        trial = report.trial
        if trial not in self.open:
            return []
        level, before = self._levels[trial]
        self._count(report, report.step - before)
        self._levels[trial] = level, report.step
        self.open.discard(trial)
        best = self.rungs[level].record(report.loss, trial)
        if best is not None and self._may_go_on(best, level):
            return [self._extend(best, level + 1, priority=level + 1)]
        return []

    def on_failure(self, trial: int) -> list[Decision]:
        """Forget the trial: it keeps its places in the rungs, and is trained no further."""
        self.open.discard(trial)
        self._failed.add(trial)
        return []

    def _count(self, report: Report, steps: Step) -> None:
        seconds = report.now.step_seconds if report.now is not None else 0.0
        self._trained += steps
        self._used += steps * (seconds if self.options.steps is None else 1.0)

    def _extend(self, trial: int, level: int, *, priority: int) -> Extend:
        self.open.add(trial)
        _, before = self._levels.get(trial, (level, 0))
        self._levels[trial] = level, before
        return Extend(trial=trial, until=self.steps[level], priority=priority)

    def _affords(self, steps: Step) -> bool:
        """Return whether the budget holds these steps besides those under way."""
        levels = (self._levels[trial] for trial in self.open)
        ahead = sum(self.steps[level] - before for level, before in levels)
        used = self._used / self.options.budget
        return used < 1 and used + (ahead + steps) * self.step_cost <= 1

    def _may_go_on(self, trial: int, level: int) -> bool:
        """Return whether a trial should be promoted from a rung where it has arrived."""
        if level >= self.top or trial in self._failed:
            return False
        last, step = self._levels[trial]
        return last == level and self._affords(self.steps[level + 1] - step)

    def _deepen(self) -> list[Decision]:
        """Promote the best trial that waits at the rung with the smallest promoted part."""
        waiting = []
        for level, rung in enumerate(self.rungs):
            arrivals = rung.arrivals()
            stay = [
                (loss, trial)
                for trial, loss in arrivals
                if loss < math.inf and self._may_go_on(trial, level)
            ]
            if stay:
                waiting.append((-len(stay) / len(arrivals), -level, min(stay)[1]))
        if not waiting:
            return []
        _, level, trial = min(waiting)
        return [self._extend(trial, 1 - level, priority=1 - level)]
