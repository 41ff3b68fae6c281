"""ASHA that stops instead of promoting: trials run on until they fall behind."""

from __future__ import annotations

import math
from dataclasses import replace

from dasktune.algos.brackets import BracketTuner, OpenBracket
from dasktune.algos.rung import Rung
from dasktune.algos.sampled import rest_of
from dasktune.types import Decision, Extend, Rank, Report, Stop


class StoppingASHA(BracketTuner):
    """Trains every trial towards `max_steps`, and stops it at the first rung where it is behind.

    Several other tools run ASHA like this; `ASHA` is the algorithm as it was published. A
    trial here is never paused, so that none is resumed, and it gets no second chance.

    At a rung a trial goes on if its loss is not larger than the k-th smallest of the n
    losses that are recorded there, its own included, with ``k = max(1, floor(n / eta))``.
    So the first to arrive goes on, until eta have arrived only the best so far does, and
    equal losses have equal fates. An infinite loss, which also stands for NaN, never goes on.
    A report that skips rungs is recorded at each of them, and judged at the last. At
    `max_steps` no trial is stopped. Failed and stopped trials keep their places.

    Parameters
    ----------
    space, trials, max_steps, min_steps, eta, brackets, seed, sampler
        As for `dasktune.algos.brackets.BracketTuner`; bracket s judges from rung s on.

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
        """Extend a trial to the end, with a report at each rung before."""
        until, reports = bracket.steps[-1], bracket.steps[:-1]
        return Extend(trial=trial, until=until, reports=reports, priority=-trial)

    def again(self, trial: int, level: int, bracket: OpenBracket) -> Extend:
        """Extend a failed trial to the end, with a report at each rung that is left."""
        return self.launch(trial, bracket)

    def go_on(self, place: int, level: int) -> list[Decision]:
        """Judge the trials that have ended at the old top rung; extend the others, too."""
        bracket = self.brackets[place]
        decisions: list[Decision] = []
        for trial, (at, reached) in sorted(self.open.items()):
            if at == place:
                passed = bracket.steps[reached - 1] if reached else 0
                request = replace(self.launch(trial, bracket), priority=reached or -trial)
                decisions.append(rest_of(request, passed))
        rung = Rung(self.options.eta)
        for trial, loss in bracket.rungs[level].arrivals():
            rung.record(loss, trial)
            if loss < math.inf and loss <= rung.cutoff:
                self.open[trial] = (place, level + 1)
                request = replace(self.launch(trial, bracket), priority=level + 1)
                decisions.append(rest_of(request, bracket.steps[level]))
            else:
                decisions.append(Stop(trial=trial))
        return decisions

    def on_report(self, report: Report) -> list[Decision]:
        """Return `Stop` if the trial is not among the best at the last rung it has passed."""
        place, level = self.open.get(report.trial, (0, 0))
        bracket = self.brackets[place]
        if report.trial not in self.open or report.step < bracket.steps[level]:
            return []
        while level < len(bracket.rungs) and bracket.steps[level] <= report.step:
            bracket.rungs[level].record(report.loss, report.trial)
            level += 1
        if report.step >= self.max_steps:
            del self.open[report.trial]
            return self.ending()
        if report.loss < math.inf and report.loss <= bracket.rungs[level - 1].cutoff:
            self.open[report.trial] = (place, level)
            # Its worker still holds the model: it goes on before another trial begins.
            return [Rank(trial=report.trial, priority=level)]
        del self.open[report.trial]
        return [Stop(trial=report.trial), *self.ending()]
