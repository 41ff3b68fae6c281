"""Stopping rules: every trial is trained in full unless its reports on the way say otherwise."""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import insort
from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction

from dasktune.algos.independent import IndependentTrials
from dasktune.errors import ConfigurationError
from dasktune.sequences.values import Arguments
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Decision, Extend, Rank, Register, Report, Step, Stop

REPORTS = 20
"""Reports of a trial unless `every` is given."""


class StoppingTuner(IndependentTrials):
    """Trains `trials` configurations to `max_steps` and stops those that a rule gives up.

    A kind implements `forget`, `stops`, `rule_json` and `take_rule_json`.

    Parameters
    ----------
    space, trials, max_steps, seed, sampler, check, more
        As for `dasktune.algos.sampled.SampledTuner`.
    every
        Steps from one report to the next; None for a twentieth of `max_steps`.
    grace
        First step at which a trial may be stopped; None for its first report.

    Raises
    ------
    ConfigurationError
        If a number is too small or a sequence ends before `max_steps`.
    """

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        every: Step | None,
        grace: Step | None,
        seed: int,
        sampler: object,
        check: Arguments,
        more: Mapping[str, object],
    ) -> None:
        # It is for the base to say what is wrong with `max_steps`.
        steps = Arguments("").whole("max_steps", max_steps)
        self.every = check.whole("every", max(1, steps // REPORTS) if every is None else every)
        self.grace = check.whole("grace", self.every if grace is None else grace)
        super().__init__(
            space,
            trials=trials,
            max_steps=max_steps,
            seed=seed,
            sampler=sampler,
            check=check,
            more={"every": self.every, "grace": self.grace, **more},
        )

    # --------------------------------------------------------------- what kinds must do

    @abstractmethod
    def forget(self) -> None:
        """Set what the rule knows to nothing."""

    @abstractmethod
    def stops(self, report: Report) -> bool:
        """Take in a report, and return whether its trial should be stopped there."""

    @abstractmethod
    def rule_json(self) -> dict[str, object]:
        """Return what the rule knows as JSON."""

    @abstractmethod
    def take_rule_json(self, state: Mapping[str, object]) -> None:
        """Take over what the rule knew; it knows nothing yet."""

    # ------------------------------------------------------------- what a tuner must do

    def begin(self) -> None:
        """Nothing is open yet, and nothing known."""
        super().begin()
        self.forget()

    def told(self, report: Report) -> list[Decision]:
        """Return `Stop` if the rule gives the trial up; `Finish` after the last trial."""
        if report.trial not in self.open:
            return []
        stops = self.stops(report)
        if report.step >= self.max_steps:
            return self.failed(report.trial)
        if not stops or report.step < self.grace:
            # Its model is at hand: it goes on before another one begins.
            return [Rank(trial=report.trial, priority=report.step)]
        return [Stop(trial=report.trial), *self.failed(report.trial)]

    def state_json(self) -> dict[str, object]:
        """Return the trials that are under way, and what the rule knows."""
        return {"open": sorted(self.open), "rule": self.rule_json()}

    def take_state_json(self, state: Mapping[str, object]) -> None:
        """Take over the trials that are under way, and what the rule knew."""
        match state:
            case {"open": list(opened), "rule": dict(rule)} if set(opened) <= set(
                range(self.registered)
            ):
                self.begin()
                self.open = set(opened)
                self.take_rule_json(rule)
            case _:
                raise ConfigurationError(f"not the state of this tuner: {state!r}")

    def request(self, trial: Register) -> Extend:
        """Return that it is trained in full, and looked at every so often."""
        reports = tuple(range(self.every, self.max_steps, self.every))
        return Extend(trial=trial.trial, until=self.max_steps, reports=reports)


class PercentileStopping(StoppingTuner):
    """Stops a trial whose best loss is worse than a percentile of the others' averages.

    A trial that reports at step s is compared with the others that have reported there, if
    they are at least `min_trials`: with the percentile of their running averages, the mean
    of a trial's losses up to s. It is stopped if its own best loss up to s is strictly worse.
    Trials that were stopped or failed count at the steps that they reported. An infinite
    loss makes the average infinite, and its own trial is stopped there, whatever its best.

    Parameters
    ----------
    space
        What to draw from: a `dasktune.Space`, or a function that defines one by running.
    trials
        How many configurations to draw.
    max_steps
        How far a trial is trained that is not stopped.
    percentile
        Of the losses, above 0 and below 100, interpolated linearly: with 25 a trial must be
        better than all but the best quarter of averages.
    every
        Steps from one report to the next; None for a twentieth of `max_steps`.
    grace
        First step at which a trial may be stopped; None for its first report.
    min_trials
        How many others must have reported at a step before any is stopped there.
    seed
        Decides what is drawn; it has nothing to do with the seed of the training.
    sampler
        Proposes configurations, one for each worker at a time if it learns; None draws at
        random.

    Raises
    ------
    ConfigurationError
        If a number is out of its range or a sequence ends before `max_steps`.

    References
    ----------
    Golovin et al., "Google Vizier: A Service for Black-Box Optimization", section 3.2.2, for
    the median. There only completed trials are compared with, which stops nobody while all
    run side by side; Ray Tune's median rule compares with all that have come as far.
    """

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        percentile: float = 50.0,
        every: Step | None = None,
        grace: Step | None = None,
        min_trials: int = 5,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments(type(self).__name__)
        self.percentile = check.real("percentile", percentile)
        self.min_trials = check.whole("min_trials", min_trials)
        if not 0 < self.percentile < 100:
            check.add(f"percentile must be > 0 and < 100, got {percentile}")
        super().__init__(
            space,
            trials=trials,
            max_steps=max_steps,
            every=every,
            grace=grace,
            seed=seed,
            sampler=sampler,
            check=check,
            more={"percentile": self.percentile, "min_trials": self.min_trials},
        )

    def forget(self) -> None:
        """No trial has reported."""
        # By trial: number, mean and least of its losses. By step: means, ascending.
        self._losses: dict[int, tuple[int, float, float]] = {}
        self._averages: dict[Step, list[float]] = defaultdict(list)

    def stops(self, report: Report) -> bool:
        """Return whether the trial's best is worse than the percentile of the others."""
        count, mean, best = self._losses.get(report.trial, (0, 0.0, math.inf))
        count, best = count + 1, min(best, report.loss)
        if mean < math.inf:
            # Exact for equal losses: a sum's rounding must not make one worse than itself.
            mean += (report.loss - mean) / count
        self._losses[report.trial] = count, mean, best
        others = self._averages[report.step]
        worse = len(others) >= self.min_trials and (
            report.loss == math.inf or best > percentile_of(others, self.percentile)
        )
        insort(others, mean)
        return worse

    def rule_json(self) -> dict[str, object]:
        """Return the losses by trial and the averages by step."""
        return {
            "losses": [[trial, *map(_finite, found)] for trial, found in self._losses.items()],
            "averages": [[step, list(map(_finite, a))] for step, a in self._averages.items()],
        }

    def take_rule_json(self, state: Mapping[str, object]) -> None:
        """Take over the losses by trial and the averages by step."""
        match state:
            case {"losses": list(losses), "averages": list(averages)}:
                for trial, count, mean, best in losses:
                    self._losses[trial] = count, _loss(mean), _loss(best)
                for step, found in averages:
                    self._averages[step] = list(map(_loss, found))
            case _:
                raise ConfigurationError(f"not the state of this tuner: {state!r}")


class MedianStopping(PercentileStopping):
    """Stops a trial whose best loss is worse than the median of the others' running averages.

    It is `PercentileStopping` with the percentile 50: see there for the rule.

    Parameters
    ----------
    space, trials, max_steps, every, grace, min_trials, seed, sampler
        As for `PercentileStopping`.

    Raises
    ------
    ConfigurationError
        If a number is out of its range or a sequence ends before `max_steps`.

    References
    ----------
    Golovin et al., "Google Vizier: A Service for Black-Box Optimization", section 3.2.2.
    """

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        every: Step | None = None,
        grace: Step | None = None,
        min_trials: int = 5,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        super().__init__(
            space,
            trials=trials,
            max_steps=max_steps,
            every=every,
            grace=grace,
            min_trials=min_trials,
            seed=seed,
            sampler=sampler,
        )


class PatienceStopping(StoppingTuner):
    """Stops a trial whose loss has not become better for `patience` steps.

    Better is lower than the best so far by more than `min_delta`; the first finite loss is
    better than nothing, and a trial that has none for `patience` steps is stopped. Other
    trials do not matter.

    Parameters
    ----------
    space
        What to draw from: a `dasktune.Space`, or a function that defines one by running.
    trials
        How many configurations to draw.
    max_steps
        How far a trial is trained that is not stopped.
    patience
        Steps.
    min_delta
        By how much a loss must be lower to count; at least 0.
    every
        Steps from one report to the next; None for a twentieth of `max_steps`.
    grace
        First step at which a trial may be stopped; None for its first report.
    seed
        Decides what is drawn; it has nothing to do with the seed of the training.
    sampler
        Proposes configurations, one for each worker at a time if it learns; None draws at
        random.

    Raises
    ------
    ConfigurationError
        If a number is out of its range or a sequence ends before `max_steps`.
    """

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        patience: Step,
        min_delta: float = 0.0,
        every: Step | None = None,
        grace: Step | None = None,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments(type(self).__name__)
        self.patience = check.whole("patience", patience)
        self.min_delta = check.real("min_delta", min_delta)
        if self.min_delta < 0:
            check.add(f"min_delta must be >= 0, got {min_delta}")
        super().__init__(
            space,
            trials=trials,
            max_steps=max_steps,
            every=every,
            grace=grace,
            seed=seed,
            sampler=sampler,
            check=check,
            more={"patience": self.patience, "min_delta": self.min_delta},
        )

    def forget(self) -> None:
        """No trial has reported."""
        self._best: dict[int, tuple[float, Step]] = {}

    def stops(self, report: Report) -> bool:
        """Return whether the last progress was `patience` steps ago."""
        best, step = self._best.get(report.trial, (math.inf, 0))
        if report.loss < best - self.min_delta:
            best, step = report.loss, report.step
        self._best[report.trial] = best, step
        return report.step - step >= self.patience

    def rule_json(self) -> dict[str, object]:
        """Return the best loss of each trial, and where it was."""
        return {"best": [[trial, _finite(loss), at] for trial, (loss, at) in self._best.items()]}

    def take_rule_json(self, state: Mapping[str, object]) -> None:
        """Take over the best loss of each trial, and where it was."""
        match state:
            case {"best": list(best)}:
                self._best = {trial: (_loss(loss), step) for trial, loss, step in best}
            case _:
                raise ConfigurationError(f"not the state of this tuner: {state!r}")


def percentile_of(ascending: list[float], percentile: float) -> float:
    """Return a percentile of sorted numbers, interpolated linearly; infinite ones may be last.

    Examples
    --------
    >>> percentile_of([1.0, 2.0, 4.0, math.inf], 50.0), percentile_of([1.0, 2.0, 4.0], 25.0)
    (3.0, 1.5)
    """
    place = Fraction(repr(percentile)) / 100 * (len(ascending) - 1)
    low, high = ascending[math.floor(place)], ascending[math.ceil(place)]
    return low if low == high else low + (high - low) * float(place % 1)


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _loss(found: float | None) -> float:
    return math.inf if found is None else found
