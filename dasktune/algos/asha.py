"""ASHA: asynchronous successive halving that promotes."""

from __future__ import annotations

from dasktune.algos.brackets import BracketTuner, OpenBracket
from dasktune.types import Decision, Extend, Report


class ASHA(BracketTuner):
    """Trains all trials a little, and promotes those in the top ``1/eta`` of a rung.

    A trial that arrives at a rung is paused. Each arrival may bring one of the trials at the
    rung into the top ``floor(n / eta)`` of the n so far. That trial is trained to the next
    rung, with the number of the rung as its priority: promotions go before new trials, which
    begin in their order. No trial waits until a rung is complete. The number of trials is
    what ends the tuner: it limits how many begin in the base rungs.

    Of equal losses the earlier ranks first; NaN and infinite values rank last and are never
    promoted. A failed trial keeps its place in the rungs that it reported at, and is trained
    no further, even if it would be promoted later.

    Parameters
    ----------
    space, trials, max_steps, min_steps, eta, brackets, seed, sampler
        As for `dasktune.algos.brackets.BracketTuner`.

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

    state = ("brackets", "open", "_failed")
    _failed: set[int]

    def begin(self) -> None:
        """Begin with empty brackets."""
        super().begin()
        self._failed = set()

    def launch(self, trial: int, bracket: OpenBracket) -> Extend:
        """Extend a trial to the base rung, in its turn."""
        return Extend(trial=trial, until=bracket.steps[0], priority=-trial)

    def on_report(self, report: Report) -> list[Decision]:
        """Return the promotion after the arrival of a trial."""
        place, level = self.open.get(report.trial, (0, 0))
        bracket = self.brackets[place]
        if report.trial not in self.open or report.step < bracket.steps[level]:
            return []
        del self.open[report.trial]
        if level < len(bracket.rungs):
            best = bracket.rungs[level].record(report.loss, report.trial)
            is_top = level + 1 == len(bracket.steps)
            if best is not None and best not in self._failed and not is_top:
                return [self._promote(best, place, level + 1)]
        return self.ending()

    def go_on(self, place: int, level: int) -> list[Decision]:
        """Return the promotions from a rung that was the top: of all that were among its best."""
        entered = self.brackets[place].rungs[level].entered()
        return [self._promote(trial, place, level + 1) for trial in entered]

    def _promote(self, trial: int, place: int, level: int) -> Extend:
        self.open[trial] = (place, level)
        return Extend(trial=trial, until=self.brackets[place].steps[level], priority=level)

    def again(self, trial: int, level: int, bracket: OpenBracket) -> Extend:
        """Extend a failed trial to the rung that it was promoted to."""
        self._failed.discard(trial)
        return Extend(trial=trial, until=bracket.steps[level], priority=level or -trial)

    def on_failure(self, trial: int) -> list[Decision]:
        """Return `Finish` after the last trial; the failed one is not promoted any more."""
        self._failed.add(trial)
        return super().on_failure(trial)
