"""ASHA that stops instead of promoting: trials run on until they fall behind."""

from __future__ import annotations

import math

from dasktune.algos.brackets import BracketTuner, OpenBracket
from dasktune.types import Decision, Extend, Rank, Report, Stop


class StoppingASHA(BracketTuner):
    """Trains every trial towards `max_steps`, and stops it at the first rung it falls behind.

    This is how several other tools run ASHA; `ASHA` is the algorithm as it was published. A
    trial here is never paused, so nothing has to be resumed, and it gets no second chance.

    At a rung a trial goes on if its loss is not larger than the k-th smallest of the n
    losses that are recorded there, its own included, with ``k = max(1, floor(n / eta))``.
    So the first to arrive goes on, until eta have arrived only the best so far does, and
    equal losses fare alike. An infinite loss, which also stands for NaN, never goes on. A
    report that skips rungs is recorded at each of them, and judged at the last. Nothing is
    stopped at `max_steps`. What has failed or was stopped keeps its places.

    Parameters
    ----------
    space
        What to draw from.
    trials
        n: how many configurations to try, split over the brackets as in `ASHA`.
    max_steps
        R: how far a trial is trained at most; None, with `min_steps` given, for as far as
        `trials` can reach, as in `ASHA`.
    min_steps
        r: how far every trial is trained at least; None as in `ASHA`.
    eta
        One of this many goes on.
    brackets
        ``"standard"`` (0, 1 and 2), ``"aggressive"`` (0), ``"conservative"`` (all), or
        their numbers. Bracket s judges from rung s on.
    seed
        Decides what is drawn.
    sampler
        Proposes configurations; None draws at random.

    Raises
    ------
    ConfigurationError
        As in `ASHA`.

    References
    ----------
    Li et al., "A System for Massively Parallel Hyperparameter Tuning", section 5.1 for the
    brackets; the rule for stopping is not in the paper.

    Examples
    --------
    >>> from dasktune.space import Float, Space
    >>> space = Space(lr=Float(0.01, 1, log=True))
    >>> StoppingASHA(space, trials=2, max_steps=60, min_steps=15, brackets=[1]).ask(1)[-1]
    Extend(trial=1, until=60, priority=-1, reports=())
    """

    def launch(self, trial: int, bracket: OpenBracket) -> Extend:
        """Return that it is trained to the end and reports at each rung before."""
        until, looks = bracket.steps[-1], bracket.steps[:-1]
        return Extend(trial=trial, until=until, reports=looks, priority=-trial)

    def told(self, report: Report) -> list[Decision]:
        """Return `Stop` if the trial is not among the best at the last rung it has passed."""
        at, level = self.open.get(report.trial, (0, 0))
        bracket = self.brackets[at]
        if report.trial not in self.open or report.step < bracket.steps[level]:
            return []
        while level < len(bracket.rungs) and bracket.steps[level] <= report.step:
            bracket.rungs[level].record(report.loss, report.trial)
            level += 1
        if report.step >= self.max_steps:
            del self.open[report.trial]
            return self.ending()
        if report.loss < math.inf and report.loss <= bracket.rungs[level - 1].cutoff:
            self.open[report.trial] = (at, level)
            # Its model is at hand: it goes on before another one begins.
            return [Rank(trial=report.trial, priority=level)]
        del self.open[report.trial]
        return [Stop(trial=report.trial), *self.ending()]
