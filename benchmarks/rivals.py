"""Tuners of other packages on recorded curves, each by its own ask, report and stop calls.

A package sees the same configurations in the same order as dasktune's tuners: its sampler is
replaced by that order. All workers train a step in the same time, so that they report in turn.
A trial that its package stops frees its worker; no package here continues one later.

Optuna's `WilcoxonPruner` is left out: it compares values on the same instances of a problem, not
the steps of a learning curve. Syne Tune is measured where it is installed.
"""

from __future__ import annotations

import datetime
import importlib
import importlib.util
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import optuna
from numpy.typing import NDArray

Losses = NDArray[Any]
"""By configuration and step, infinite where a value was not finite."""

LOSS, STEP, NUMBER = "loss", "step", "number"


class Rival(Protocol):
    """A tuner of another package."""

    def ask(self) -> Any:
        """Return its next trial."""

    def report(self, trial: Any, step: int, loss: float) -> bool:
        """Return whether it stops the trial after this report."""

    def end(self, trial: Any, step: int, loss: float, *, is_stopped: bool) -> None:
        """Tell it the last value of a trial."""


class OptunaPruner:
    """A pruner of Optuna, in a study that asks, reports and tells."""

    def __init__(self, pruner: optuna.pruners.BasePruner) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(
            pruner=pruner, sampler=optuna.samplers.RandomSampler(seed=0), study_name="rival"
        )

    def ask(self) -> optuna.Trial:
        """Return the next trial."""
        return self._study.ask()

    def report(self, trial: optuna.Trial, step: int, loss: float) -> bool:
        """Return whether the pruner stops the trial."""
        trial.report(loss, step)
        return trial.should_prune()

    def end(self, trial: optuna.Trial, step: int, loss: float, *, is_stopped: bool) -> None:
        """Tell the state of the trial; one with a value that is not finite has the worst."""
        if is_stopped:
            self._study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            self._study.tell(trial, loss)


class SyneTune:
    """A scheduler of Syne Tune, called as its tuner calls it."""

    def __init__(self, name: str, steps: int, count: int) -> None:
        logging.getLogger("syne_tune").setLevel(logging.ERROR)
        baselines = importlib.import_module("syne_tune.optimizer.baselines")
        status = importlib.import_module("syne_tune.backend.trial_status")
        space = {NUMBER: importlib.import_module("syne_tune.config_space").randint(0, count - 1)}
        points = [{NUMBER: place} for place in range(count)]
        if name == "ASHA":
            made = baselines.AsynchronousSuccessiveHalving(
                space,
                metric=LOSS,
                searcher="random_search",
                time_attr=STEP,
                max_t=steps,
                random_seed=0,
                searcher_kwargs={"points_to_evaluate": points},
            )
        else:
            rule = importlib.import_module("syne_tune.optimizer.schedulers.median_stopping_rule")
            plain = baselines.RandomSearch(
                space, metrics=[LOSS], random_seed=0, points_to_evaluate=points
            )
            made = rule.MedianStoppingRule(plain, time_attr=STEP, metric=LOSS, random_seed=0)
        self._scheduler, self._trial = made, status.Trial
        self._asked = 0

    def ask(self) -> Any:
        """Return the next trial."""
        suggestion = self._scheduler.suggest()
        trial = self._trial(self._asked, suggestion.config, datetime.datetime.now())
        self._asked += 1
        if hasattr(self._scheduler, "on_trial_add"):
            self._scheduler.on_trial_add(trial)
        return trial

    def report(self, trial: Any, step: int, loss: float) -> bool:
        """Return whether the scheduler stops the trial."""
        return str(self._scheduler.on_trial_result(trial, {LOSS: loss, STEP: step})) == "STOP"

    def end(self, trial: Any, step: int, loss: float, *, is_stopped: bool) -> None:
        """Tell that the trial is complete; the scheduler knows of those that it stopped."""
        if not is_stopped:
            self._scheduler.on_trial_complete(trial, {LOSS: loss, STEP: step})


RIVALS: Mapping[str, Callable[[int, int], Rival]] = {
    "Optuna's MedianPruner": lambda steps, count: OptunaPruner(optuna.pruners.MedianPruner()),
    "Optuna's SuccessiveHalvingPruner": lambda steps, count: OptunaPruner(
        optuna.pruners.SuccessiveHalvingPruner()
    ),
    "Optuna's HyperbandPruner": lambda steps, count: OptunaPruner(
        optuna.pruners.HyperbandPruner(max_resource=steps)
    ),
    "Syne Tune's ASHA": lambda steps, count: SyneTune("ASHA", steps, count),
    "Syne Tune's MedianStoppingRule": lambda steps, count: SyneTune("Median", steps, count),
}
"""By name: makes a rival for so many steps and configurations, with its package's defaults."""


def installed() -> list[str]:
    """Return the names of the rivals whose packages are installed."""
    has_syne_tune = importlib.util.find_spec("syne_tune") is not None
    return [name for name in RIVALS if has_syne_tune or not name.startswith("Syne")]


def steps_to_target(
    rival: Rival, losses: Losses, order: Sequence[int], target: float, workers: int, most: int
) -> int | None:
    """Return the steps that all workers have trained when the target is reached, or None.

    Parameters
    ----------
    rival
        Decides which trials are stopped.
    losses
        The recorded curves.
    order
        The configurations, in the order in which they are tried.
    target
        A loss that is low enough.
    workers
        How many trials are trained at the same time.
    most
        Steps after which the run ends.
    """
    worst = float(np.max(losses, initial=0.0, where=np.isfinite(losses))) + 1.0
    left, steps = list(reversed(order)), 0
    running: list[tuple[Any, int, int]] = []
    while True:
        while left and len(running) < workers:
            running.append((rival.ask(), left.pop(), 0))
        if not running:
            return None
        going_on = []
        for trial, number, before in running:
            step, steps = before + 1, steps + 1
            loss = float(losses[number, before])
            if loss <= target:
                return steps
            if steps >= most:
                return None
            known = loss if math.isfinite(loss) else worst
            stops = rival.report(trial, step, known)
            if stops or step == losses.shape[1]:
                rival.end(trial, step, known, is_stopped=stops)
            else:
                going_on.append((trial, number, step))
        running = going_on
