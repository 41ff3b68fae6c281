"""ASHA: asynchronous successive halving that promotes."""

from __future__ import annotations

from collections.abc import Mapping

from dasktune.algos.brackets import BracketTuner, OpenBracket
from dasktune.errors import ConfigurationError
from dasktune.types import Decision, Extend, Report


class ASHA(BracketTuner):
    """Trains all trials a little, and promotes whoever is in the top ``1/eta`` of a rung.

    A trial that arrives at a rung is paused. Each arrival at a rung may make one of those
    that are there belong to the top ``floor(n / eta)`` of the n so far: it is trained to
    the next rung, with the rung's number as its priority, so that promotions go before
    new trials, which begin in their order. Nothing waits for a rung to be complete. The
    number of trials is what ends it: it limits how many begin in the base rungs.

    Of equal losses the earlier one ranks first; what is NaN or infinite ranks last and is
    never promoted. A trial that fails keeps its place in the rungs that it reported at and
    is trained no further, also if it would be promoted later.

    Parameters
    ----------
    space
        What to draw from.
    trials
        n: how many configurations to try. They are split over the brackets so that each
        bracket gets the same total of training; a new one goes to the bracket that lags
        most behind its share.
    max_steps
        R: how far the best are trained. None, with `min_steps` given, lets promotions go as
        far as `trials` can reach, ``min_steps * eta**floor(log_eta(trials))``: the infinite
        horizon. That stays the limit when trials are added.
    min_steps
        r: how far every trial is trained at least. If None, `max_steps` is divided by `eta`
        to at most five rungs, and the lowest are left out while a bracket has too few
        trials for one to reach `max_steps`.
    eta
        One of this many is promoted.
    brackets
        ``"standard"`` (0, 1 and 2), ``"aggressive"`` (0), ``"conservative"`` (all), or
        their numbers. Bracket s begins at rung s; those that do not exist are left out.
    seed
        Decides what is drawn.
    sampler
        Proposes configurations; None draws at random.

    Raises
    ------
    ConfigurationError
        If a number is too small, `min_steps` is above `max_steps`, or there are too few
        trials for `min_steps`: all at once, with the number that is enough.

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", Algorithm 2,
    section 3.3 (infinite horizon) and 5.1 (brackets).

    Examples
    --------
    >>> from dasktune.space import Float, Space
    >>> tuner = ASHA(Space(lr=Float(0.01, 1, log=True)), trials=144, max_steps=256)
    >>> [(bracket.steps, bracket.width) for bracket in tuner.layout()]
    [((4, 16, 64, 256), 99), ((16, 64, 256), 33), ((64, 256), 12)]
    """

    def begin(self) -> None:
        """Nobody is in any bracket yet."""
        super().begin()
        self._failed: set[int] = set()

    def launch(self, trial: int, bracket: OpenBracket) -> Extend:
        """Return that it is trained to the base rung, in its turn."""
        return Extend(trial=trial, until=bracket.steps[0], priority=-trial)

    def told(self, report: Report) -> list[Decision]:
        """Return the promotion that the arrival of a trial leads to."""
        at, level = self.open.get(report.trial, (0, 0))
        bracket = self.brackets[at]
        if report.trial not in self.open or report.step < bracket.steps[level]:
            return []
        del self.open[report.trial]
        if level < len(bracket.rungs):
            best = bracket.rungs[level].record(report.loss, report.trial)
            if best is not None and best not in self._failed:
                self.open[best] = (at, level + 1)
                return [Extend(trial=best, until=bracket.steps[level + 1], priority=level + 1)]
        return self.ending()

    def failed(self, trial: int) -> list[Decision]:
        """Return `Finish` if this was the last; it keeps its places and is not promoted."""
        self._failed.add(trial)
        return super().failed(trial)

    def state_json(self) -> dict[str, object]:
        """Return the brackets, and what is under way and what has failed."""
        return {**super().state_json(), "failed": sorted(self._failed)}

    def take_state_json(self, state: Mapping[str, object]) -> None:
        """Take over such a state."""
        super().take_state_json(state)
        failed = state.get("failed")
        if not isinstance(failed, list):
            raise ConfigurationError(f"not the state of this tuner: {state!r}")
        self._failed = set(failed)
