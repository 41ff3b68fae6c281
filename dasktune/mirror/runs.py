"""The runs of a study's trials, as loggers get them: each step in the run of one trial only.

Trials that begin alike share the steps of their beginning. Such a step belongs to the run of the
trial that comes first; the other runs say up to which step they share, and with which trials.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dasktune._engine.trials import TrialRecord
from dasktune.graph.plan import Node, SearchPlan
from dasktune.storage.database.rows import StudyRow
from dasktune.types import Metrics, Objective, Step, TrialState, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStudy:
    """The facts about a study that a logger needs before its runs.

    Attributes
    ----------
    id
        Differs between studies of the same name; 16 letters and digits.
    name, objective
        As the study was created.
    folder
        Where relative paths start; None is the working directory.
    """

    id: str
    name: str
    objective: Objective
    folder: Path | None = None

    @classmethod
    def of(cls, row: StudyRow, objective: Objective, folder: Path | None) -> LoggedStudy:
        """Return the facts about the study of a row of the database."""
        text = f"{row.root}:{row.created}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return cls(id=digest, name=row.name, objective=objective, folder=folder)

    def run_id(self, record: TrialRecord) -> str:
        """Return the identifier of a trial's run: the same in every process.

        A trial that is trained again, alone, has other metrics: they get a run of their own.
        """
        return f"{self.id}-{run_name(record)}"


def run_name(record: TrialRecord) -> str:
    """Return the name of a trial's run inside its study."""
    return f"trial-{record.number:04d}{'' if record.alone is None else '-alone'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSteps:
    """Steps of a trial that are in the run of another trial.

    Attributes
    ----------
    first, last
        The first and the last of them that has metrics.
    trial
        Number of the other trial.
    """

    first: Step
    last: Step
    trial: int

    def __str__(self) -> str:
        steps = (
            f"step {self.last}" if self.first == self.last else f"steps {self.first}-{self.last}"
        )
        return f"{steps}: trial {self.trial}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRun:
    """The run of a trial, with the metrics that were not passed on before.

    Parameters
    ----------
    id, name
        The run's identifier, the same in every process, and its name inside the study.
    number
        Number of the trial.
    state, steps, values, error, user_attrs, seed
        As those of `dasktune.Trial`; values by the name of the metric.
    params
        What was sampled: plain values, others as text.
    metrics
        New metrics by step, without those in runs of other trials.
    hp
        The hyper-parameters that change over the steps, for each of these steps.
    shared
        The steps in runs of other trials so far, ascending.
    """

    id: str
    name: str
    number: int
    state: TrialState
    steps: Step
    values: Mapping[str, float]
    error: str
    user_attrs: Mapping[str, object]
    seed: int
    params: Mapping[str, Value]
    metrics: Mapping[Step, Metrics]
    hp: Mapping[Step, Mapping[str, Value]]
    shared: tuple[SharedSteps, ...] = ()

    def after(self, earlier: TrialRun) -> TrialRun:
        """Return this run with the unwritten metrics of an earlier one."""
        metrics, hp = {**earlier.metrics, **self.metrics}, {**earlier.hp, **self.hp}
        return replace(self, metrics=metrics, hp=hp)

    @property
    def shared_until(self) -> Step:
        """The last step that is in the run of another trial; 0 if there is none."""
        return self.shared[-1].last if self.shared else 0

    @property
    def shared_with(self) -> tuple[int, ...]:
        """The trials whose runs have the shared steps, without repeats."""
        return tuple(dict.fromkeys(each.trial for each in self.shared))

    def tags(self) -> dict[str, str]:
        """Return the facts about the trial that are no metrics, as text by name."""
        tags = {
            "trial": str(self.number),
            "state": self.state.value,
            "steps": str(self.steps),
            "error": self.error,
            "shared_until": str(self.shared_until) if self.shared else "",
            "shared_with": ", ".join(map(str, self.shared_with)),
            "shared": "; ".join(map(str, self.shared)),
            **{f"user.{name}": str(plain(value)) for name, value in self.user_attrs.items()},
        }
        return {name: text for name, text in tags.items() if text}


@dataclass(slots=True)
class _Progress:
    """How much of a run was passed on."""

    written: set[Step]
    owners: dict[Step, int] = field(default_factory=dict)
    """The trials in whose runs the steps are: to compute a state key takes longer."""
    until: Step = 0
    shared: tuple[SharedSteps, ...] = ()


class Runs:
    """Makes the runs of trials; keeps in which run each step is.

    Parameters
    ----------
    written
        The steps that a logger has already, by identifier of the run: they stay where they are.
    plan, records
        The study's search plan and its trials.
    """

    def __init__(
        self,
        study: LoggedStudy,
        written: Mapping[str, Collection[Step]],
        plan: SearchPlan,
        records: Iterable[TrialRecord],
    ) -> None:
        self._study = study
        self._written = written
        self._owners: dict[str, int] = {}
        self._progress: dict[str, _Progress] = {}
        for record in records:
            steps = written.get(study.run_id(record), ())
            progress = self._progress[study.run_id(record)] = _Progress({*steps})
            for step, node in _reports(plan, record, 0) if steps else ():
                if step in steps:
                    self._owner(record.number, node, step, progress)

    def of(self, plan: SearchPlan, record: TrialRecord) -> TrialRun:
        """Return the run of a trial as it is now, with its new metrics.

        While a trial runs, only steps after those that were passed on are looked at. Once it is
        finished, all are: metrics of earlier steps may have been found late in the store.
        """
        identifier = self._study.run_id(record)
        progress = self._progress.get(identifier)
        if progress is None:
            steps = self._written.get(identifier, ())
            progress = self._progress[identifier] = _Progress({*steps})
        if record.state.is_finished:
            progress.until, progress.shared = 0, ()
        new = {}
        for step, node in _reports(plan, record, progress.until):
            owner = self._owner(record.number, node, step, progress)
            progress.until = step
            if owner != record.number:
                progress.shared = _with_shared(progress.shared, step, owner)
            elif step not in progress.written:
                new[step] = node.metrics[step]
        progress.written.update(new)
        return self._run(record, new, progress.shared)

    def _owner(self, number: int, node: Node, step: Step, progress: _Progress) -> int:
        """Return the trial in whose run a step is: the first that this was asked for."""
        owner = progress.owners.get(step)
        if owner is None:
            owner = self._owners.setdefault(node.key_at(step), number)
            progress.owners[step] = owner
        return owner

    def _run(
        self,
        record: TrialRecord,
        metrics: Mapping[Step, Metrics],
        shared: tuple[SharedSteps, ...],
    ) -> TrialRun:
        changing = {
            name: sequence
            for name, sequence in record.sequences.items()
            if sequence.constant_until(0) is not None
        }
        return TrialRun(
            id=self._study.run_id(record),
            name=run_name(record),
            number=record.number,
            state=record.state,
            steps=record.reached,
            values=record.metrics(self._study.objective),
            error=(record.message or record.traceback) if record.state is TrialState.FAIL else "",
            user_attrs=dict(record.user_attrs),
            seed=record.seed,
            params={name: plain(value) for name, value in record.params.items()},
            metrics=metrics,
            hp={
                step: {name: sequence(step - 1) for name, sequence in changing.items()}
                for step in (metrics if changing else ())
            },
            shared=shared,
        )


def _reports(plan: SearchPlan, record: TrialRecord, after: Step) -> Iterator[tuple[Step, Node]]:
    """Yield the steps with metrics of a trial, as `dasktune.Trial` has them, and their nodes."""
    failed = record.state is TrialState.FAIL
    limit = record.max_steps if failed else record.asked
    for node in plan.nodes_of(record.number):
        if node.stop > after:
            for step in sorted(node.metrics):
                if after < step <= limit:
                    yield step, node


def _with_shared(
    shared: tuple[SharedSteps, ...], step: Step, trial: int
) -> tuple[SharedSteps, ...]:
    if shared and shared[-1].trial == trial:
        return (*shared[:-1], replace(shared[-1], last=step))
    return (*shared, SharedSteps(first=step, last=step, trial=trial))


def plain(value: Any) -> Value:
    """Return a value as it is if it is plain, else as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return json.dumps(value, default=str)
