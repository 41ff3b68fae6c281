"""The training of trials: what the dispatcher must know of each, and what it is asked to train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dasktune._engine.trial_keeper import TrialKeeper
from dasktune._engine.trials import Alone, TrialRecord, lineage_of
from dasktune.errors import ConfigurationError
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.events import FailTrial, Instruction
from dasktune.needs import Needs, NumericClass
from dasktune.space import Space, with_branches
from dasktune.types import Extend, Sequences, Value

NeedsOf = Callable[[Mapping[str, Value]], Needs]
"""Returns the needs of a configuration from its values at step 0; raises `ConfigurationError`."""


class TrialTraining:
    """Makes trials known to the dispatcher, and asks it to train them.

    A trial is trained alone from now on if all are (`trains_alone`), or those of its lineage
    (`lone_lineages`): their trainer does not resume exactly. A trial that has ended stays as it is.
    Configurations have needs of their own if there is `needs_of`.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        keeper: TrialKeeper,
        *,
        needs_of: NeedsOf | None = None,
        trains_alone: bool = False,
        lone_lineages: frozenset[str] = frozenset(),
    ) -> None:
        self._dispatcher = dispatcher
        self._keeper = keeper
        self._needs_of = needs_of
        self._trains_alone, self._lone_lineages = trains_alone, lone_lineages
        self._problems: dict[int, str] = {}
        """Why trials cannot be trained, by number: their needs are unknown or impossible."""

    def needs(self, trial: TrialRecord, space: Space | None) -> Needs | None:
        """Return a trial's own needs: its tuner's, or those of its configuration in `space`.

        None if it has those of the study alone.
        """
        if trial.needs is not None:
            return trial.needs
        needs = study = self._dispatcher.options.needs
        try:
            if self._needs_of is not None:
                needs = self._needs_of({name: each(0) for name, each in trial.sequences.items()})
            if space is not None:
                needs = with_branches(needs, space, trial.sequences)
        except ConfigurationError as error:
            self.refuse(trial, str(error))
            return None
        return None if needs is study else needs

    def refuse(self, trial: TrialRecord, problem: str) -> None:
        """Note why a trial cannot be trained: it fails with these words when it is requested."""
        self._problems[trial.number] = problem

    def is_alone(self, sequences: Sequences, seed: int) -> bool:
        """Return whether trials of a lineage are trained by themselves from now on."""
        lone = self._lone_lineages
        return self._trains_alone or bool(lone and lineage_of(sequences, seed) in lone)

    def enter(self, trial: TrialRecord, needs: Needs | None) -> list[Instruction]:
        """Make a trial known to the dispatcher, with the devices that it has now."""
        return self._dispatcher.register(
            *(trial.number, trial.keyed_sequences, trial.max_steps, trial.seed),
            is_alone=trial.alone is not None,
            needs=needs,
            model_rank=trial.model_rank,
            numerics=trial.numeric_class,
        )

    def extend(self, trial: TrialRecord, request: Extend, now: float) -> list[Instruction]:
        """Ask the dispatcher for the rest of a request, alone if the trial is from now on."""
        if trial.number in self._problems:
            return [self._failure(trial)]
        if self.is_alone(trial.sequences, trial.seed):
            self._separate(trial)
        return self._dispatcher.extend(
            trial.number, request.until, request.priority, now, request.reports
        )

    def go_on(self, trial: TrialRecord, request: Extend, now: float) -> list[Instruction]:
        """Ask the dispatcher for a request again, without the reports that were told."""
        ahead = tuple(step for step in request.reports if step > trial.steps)
        return self.extend(trial, replace(request, reports=ahead), now)

    def train_again(self, trial: TrialRecord, now: float) -> list[Instruction]:
        """Ask the dispatcher for the steps that a trial has reported, trained alone."""
        if trial.number in self._problems:
            return [self._failure(trial)]
        self._separate(trial)
        return self._dispatcher.extend(trial.number, trial.steps, 0.0, now)

    def _failure(self, trial: TrialRecord) -> FailTrial:
        problem = self._problems[trial.number]
        return FailTrial(trial=trial.number, step=trial.steps, message=problem)

    def _separate(self, trial: TrialRecord) -> None:
        """Train a trial alone from now on."""
        if trial.alone is None:
            trial.devices = ((0, trial.devices[-1][1]),)
            path = trial.number, trial.keyed_sequences, trial.max_steps, trial.seed
            trial.alone = Alone(told=trial.steps, trained=self._dispatcher.separate(*path))
            trial.numerics = ""
            self._keeper.change(trial)

    def bind(self, trial: TrialRecord, numerics: NumericClass) -> None:
        """Note the numeric class that a trial's keys name, before its first stage is sent."""
        if trial.numerics != numerics.name:
            trial.numerics = numerics.name
            self._keeper.change(trial)
