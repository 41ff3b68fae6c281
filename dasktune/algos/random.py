"""Random search: configurations drawn from a space, or proposed by a sampler, in full."""

from __future__ import annotations

from dasktune.algos.sampled import Budget, IndependentTrials
from dasktune.sequences.values import Arguments
from dasktune.space.define_by_run import AnySpace, Definition
from dasktune.types import Decision, Extend, Report, Step


class Random(IndependentTrials):
    """Trains `trials` configurations of a space to `max_steps`, drawn at random.

    With a `sampler` it trains the configurations that the sampler proposes. The same
    configuration may come more than once; training it again costs nothing.

    Parameters
    ----------
    space, trials, max_steps, seed, sampler
        As for `dasktune.algos.sampled.SampledTuner`.

    References
    ----------
    Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", section 2.
    """

    trains_in_full = True
    several_objectives = True

    def __init__(
        self,
        space: AnySpace | Definition,
        *,
        trials: int,
        max_steps: Step,
        seed: int = 0,
        sampler: object = None,
    ) -> None:
        check = Arguments(type(self).__name__)
        budget = Budget.checked(check, trials, max_steps, seed)
        super().__init__(space, budget, sampler=sampler, check=check)

    def request(self, trial: int) -> Extend:
        """Extend a trial to `max_steps`."""
        return Extend(trial=trial, until=self.max_steps)

    def on_report(self, report: Report) -> list[Decision]:
        """Return `Finish` when the last trial arrives at `max_steps`."""
        return self.on_failure(report.trial) if report.step >= self.max_steps else []
