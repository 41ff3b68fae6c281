"""Training a single configuration now: `Study.evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dasktune._study.from_optuna import explained
from dasktune._study.known_problems import other_names
from dasktune._study.last_lines import origin
from dasktune._study.optimize import Optimizer
from dasktune._study.parts import StudyParts
from dasktune.algos.fixed import SingleTrial
from dasktune.errors import TrainerError, refuse
from dasktune.trainer.base import name_problems_of
from dasktune.types import Metrics, Step, TrialState

if TYPE_CHECKING:
    from distributed import Client


class SingleTrials:
    """Trains single configurations as trials of a study."""

    def __init__(self, parts: StudyParts, optimizer: Optimizer) -> None:
        self._parts, self._optimizer = parts, optimizer

    @explained({}, "study.evaluate({'lr': 0.1}, steps=30)")
    def evaluate(
        self,
        hp: Mapping[str, object],
        steps: Step,
        *,
        client: Client | None = None,
        workers: int | str | None = None,
        last_line: bool = True,
    ) -> Metrics:
        """Train one configuration to `steps`, now, and return its metrics [Hippo Fig. 11].

        It becomes a trial of the study. If its metrics at this step are stored, these are the
        answer; else it is trained, from the last stored state of any trial that it shares.

        Parameters
        ----------
        steps
            Number of steps.
        client, workers
            As for `optimize`.
        last_line
            Print to standard error, at the end, where the metrics come from.

        Raises
        ------
        TrainerError
            If its training failed, or was stopped (`stop`) before its end.
        """
        results, tuner = self._parts.results, SingleTrial(hp, steps)
        results.catch_up()
        refuse(name_problems_of(self._parts.config.known_trainer, hp))
        refuse(other_names(hp, results.records.values()))
        place = results.history.place_of(tuner).number
        earlier = {stage.attempt for stage in results.stages()}
        self._optimizer.optimize(
            tuner, client=client, workers=workers, progress=False, last_line=False
        )
        number = next((n for n, record in results.records.items() if record.tuner == place), None)
        trial = None if number is None else results.trials[number]
        if trial is not None and trial.error is not None:
            raise TrainerError(results.records[trial.number].message, trial.error)
        if trial is None or trial.state is not TrialState.COMPLETE:
            raise TrainerError(
                f"study {results.name!r}: evaluate was stopped before step {steps}; the same call "
                "goes on where it was"
            )
        if last_line:
            stages = [row for row in results.stages() if row.attempt not in earlier]
            sys.stderr.write(f"{results.name}: {origin(stages, steps)}\n")
        return trial.metrics[trial.steps]
