"""The results of a study, read-only: its trials, the best of them, figures and tables."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dasktune._driver.audit_notes import differences_of, figures_of
from dasktune._driver.numerics import PORTABLE
from dasktune._driver.run_status import RunStatus
from dasktune._driver.transfer import Transfer, transfers_of
from dasktune._engine.event_log import Replay, replay
from dasktune._engine.limits import Used
from dasktune._engine.trials import (
    Repeated,
    Trial,
    TrialRecord,
    best_of,
    pareto_front,
    repeats_of,
    table_of,
    trial_of,
)
from dasktune._engine.tuner_records import Document
from dasktune._garbage import without_collections
from dasktune._results.contents import StudyContents
from dasktune._results.no_best import no_best_text
from dasktune._results.prediction import (
    Bounds,
    Checks,
    CurveReader,
    TrialPrediction,
    check_predictions,
    predict_trial,
    seconds_of_steps,
)
from dasktune._results.rows import objective_of, registered
from dasktune._results.stage_logs import StageLog, stage_logs
from dasktune._results.summary import (
    Summary,
    models_of,
    steps_beyond,
    summarise,
    suspensions_of,
    trials_on_several_classes,
)
from dasktune._results.trial_paths import MOST_STEPS, keys_of
from dasktune._results.withdrawn import withdrawn_of
from dasktune._words import counted
from dasktune.algos.base import Tuner
from dasktune.algos.curves import Predictor
from dasktune.algos.forest.ranks import ModelWeight
from dasktune.errors import ConfigurationError
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.plan import SearchPlan
from dasktune.mirror import Seen, optuna_study, spans_of
from dasktune.storage.database.rows import StageRow
from dasktune.types import Direction, Step

if TYPE_CHECKING:
    import optuna
    import pandas
    from optuna.storages import BaseStorage

    from dasktune.traces.trace import Trace


FEW_TRIALS = 10
"""Trials that are shown by looking up their states; for more, the whole study is read."""


class StudyResults:
    """Reads a study: from its memory, its database, and the store where both have gaps."""

    def __init__(self, contents: StudyContents) -> None:
        self._contents = contents
        self.row, self.database, self.store = contents.row, contents.database, contents.store
        self.history = contents.history
        self.name = self.row.name
        self.objective = objective_of(self.row.spec)
        self.seed: int = self.row.spec["seed"]

    def __repr__(self) -> str:
        records = self._contents.records_in_memory
        count = self.history.count_trials() if records is None else len(records)
        return f"Study({self.name!r}, {counted(count, 'trial')})"

    @property
    def options(self) -> DispatchOptions:
        """How the study's dispatcher plans stages and saves."""
        return self._contents.options

    @property
    def records(self) -> Mapping[int, TrialRecord]:
        """The present record of each trial by number; read when first asked for."""
        return self._contents.records

    @property
    def plan(self) -> SearchPlan:
        """The search plan of all trials, for reports."""
        return self._contents.plan

    @property
    def metric(self) -> str:
        """Name of the metric that the study optimises; the first of several."""
        return self.objective.metrics[0]

    @property
    def direction(self) -> Direction:
        """Direction of `metric`."""
        return self.objective.directions[0]

    @property
    def trials(self) -> list[Trial]:
        """All trials, by number."""
        return self._shown(self.records.values())

    @property
    def best_trial(self) -> Trial:
        """The trial with the best finite value of those that did not fail.

        Raises
        ------
        ConfigurationError
            If there is none yet, or there are several objectives.
        """
        return self._shown([self._known_best()])[0]

    @property
    def best_trials(self) -> list[Trial]:
        """The trials that no other trial beats: the Pareto front for several objectives."""
        if len(self.objective.metrics) == 1:
            best = self._best_record()
            return [] if best is None else self._shown([best])
        return self._shown(pareto_front(self.records.values(), self.objective))

    @property
    def best_repeats(self) -> list[Repeated]:
        """The configurations that `dasktune.algos.Repeats` trained, the best mean first.

        `best_trial` is the best single trial: with noise, the one with the luckiest seed.
        """
        return repeats_of(self.records.values(), self.direction)

    @property
    def best_value(self) -> float:
        """The value of the best trial."""
        value = self._known_best().value
        return math.nan if value is None else value

    @property
    def best_params(self) -> Mapping[str, object]:
        """The sampled values of the best trial."""
        return self._known_best().params

    @property
    def user_attrs(self) -> dict[str, object]:
        """The values that users attached with `set_user_attr`."""
        return {note["name"]: note["value"] for note in self.history.notes("user_attr")}

    @without_collections()
    def stages(self) -> list[StageRow]:
        """Return every attempt that ran for this study, in order of start."""
        return sorted(self.database.stages(self.row.id), key=lambda row: row.started)

    @without_collections()
    def summary(self) -> Summary:
        """Return the steps that were requested and trained, and their cost."""
        plan = self._contents.counted_plan()
        runs = self.runs()
        best = self._best_record()
        stages = self.stages()
        run = self.database.last_run(self.row.id)
        models = () if run is None else RunStatus.from_row(run).models
        figures = summarise(
            plan,
            self.records,
            steps_executed=sum(stage.steps for stage in stages),
            steps_repeated=sum(stage.repeated for stage in stages),
            wall_seconds=sum(note["wall_seconds"] for note in runs),
            proof_seconds=sum(note.get("proof_seconds", 0.0) for note in runs),
            worker_seconds=sum(stage.worker_seconds for stage in stages),
            best_value=None if best is None else best.value,
            steps_beyond=steps_beyond(plan, self.records, stages),
            steps_audited=self.history.steps_audited,
            audits=figures_of(self.history),
            withdrawn=withdrawn_of(differences_of(self.history), self.records.values()),
            suspensions=suspensions_of(stages),
        )
        is_portable = self.row.spec.get(PORTABLE) is True
        several = trials_on_several_classes(plan, self.records, stages) if is_portable else []
        return {
            **figures,
            "models": models_of(models),
            "trials_on_several_classes": several,
        }

    @property
    def differences(self) -> list[Document]:
        """The notes of audits that found a difference; with any, nothing is merged any more."""
        return differences_of(self.history) if self.options.merge else []

    @property
    def tuners(self) -> list[Mapping[str, object]]:
        """Identities of the tuners that the study was run with, in order."""
        return [begun.identity for begun in self.history.begun.values()]

    @property
    def transfers(self) -> list[Transfer]:
        """The trials of other studies that samplers learned from, by tuner and study."""
        return transfers_of(self.history.begun)

    def decisions_of(self, place: int) -> Iterator[Document]:
        """Yield every call of the tuner at a place of `tuners`, with its decisions."""
        return self.history.documents_of(place)

    def runs(self) -> list[Document]:
        """Return the last note of each run: the time and steps that it used."""
        return list({note["run"]: note for note in self.history.notes("run")}.values())

    def used(self, place: int, *, with_best: bool) -> Used:
        """Return the sums over the earlier runs of a tuner, with its best loss if wanted."""
        notes = [note for note in self.runs() if note["place"] == place]
        best = math.inf
        if with_best:
            own = [record for record in self.records.values() if record.tuner == place]
            known = (metrics for _, by_step in self.seen(own) for metrics in by_step.values())
            names = set(self.objective.metrics)
            losses = (self.objective.losses(each)[0] for each in known if names <= each.keys())
            best = min(losses, default=math.inf)
        return Used(
            seconds=sum(note["wall_seconds"] for note in notes),
            worker_seconds=sum(note["worker_seconds"] for note in notes),
            steps=sum(note["steps"] for note in notes),
            best_loss=best,
        )

    def replay(self, tuner: Tuner) -> Replay:
        """Derive every decision of a tuner again from its event log, and compare.

        Raises
        ------
        ConfigurationError
            If the study has not run this tuner.
        StorageError
            If events of its log are missing.
        """
        number, begun = self._known(tuner)
        self.history.refuse_gap()
        return replay(begun, self.history.records_of(number), self.objective)

    def models(self, tuner: Tuner) -> list[ModelWeight]:
        """Return the models of a tuner's space, with their weights after its last record.

        They are those of a `dasktune.Forest`; other samplers have none. Each has its
        complexity, its priority, and its number of trials.

        Raises
        ------
        ConfigurationError
            If the study has not run this tuner.
        StorageError
            If events of its log are missing.
        """
        number, begun = self._known(tuner)
        self.history.refuse_gap()
        replay(begun, self.history.records_of(number), self.objective)
        return begun.model_weights

    def log(self, tuner: Tuner) -> list[Document]:
        """Return the event log of a tuner: each call's cause and decisions, in order.

        Raises
        ------
        ConfigurationError
            If the study has not run this tuner.
        """
        return list(self.history.documents_of(self._known(tuner)[0]))

    def _known(self, tuner: Tuner) -> tuple[int, Tuner]:
        self.catch_up()
        known = self.history.known(copy.deepcopy(tuner))
        if known is None:
            raise ConfigurationError(f"study {self.name!r} has not run this tuner yet")
        return known

    def trials_dataframe(self) -> pandas.DataFrame:
        """Return one row a trial: number, state, steps, value, and each hyper-parameter.

        With several objectives there are ``values_0``, ``values_1``, ... in place of the
        value. A hyper-parameter that has the name of a column gets ``params_<name>``, as
        Optuna calls it.

        Raises
        ------
        ConfigurationError
            If pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ConfigurationError(
                "trials_dataframe needs pandas: pip install 'dasktune[dataframe]'"
            ) from None
        columns, rows = table_of(self.records.values(), len(self.objective.metrics))
        return pandas.DataFrame(rows, columns=columns)

    def predict(
        self,
        number: int,
        *,
        steps: Step | Iterable[Step] | None = None,
        predictor: Predictor | str | None = None,
        bounds: Bounds = (None, None),
        rate: str | None = None,
    ) -> TrialPrediction:
        """Predict the future of a trial's learning curve; also while the trial runs.

        Of several metrics the first is predicted.

        Parameters
        ----------
        number
            Number of the trial.
        steps
            Future steps, ascending; up to the trial's end if None. They may lie beyond it.
        predictor
            A predictor of `dasktune.algos.curves` or its name, such as ``"Persistence"``, or
            your own; None takes the fast one.
        bounds
            The lowest and the highest value that the metric can have; None where it has no
            bound.
        rate
            Name of the learning rate, if it is neither ``lr`` nor ``learning_rate``.

        Raises
        ------
        ConfigurationError
            If there is no such trial, it has no measured value yet or one beyond the bounds, or
            no step is left.
        """
        reader = self._curves(bounds, rate)
        step_seconds = seconds_of_steps(self.stages(), number)
        return predict_trial(
            reader, number, steps=steps, predictor=predictor, step_seconds=step_seconds
        )

    def check_predictions(
        self,
        *,
        predictor: Predictor | str | None = None,
        bounds: Bounds = (None, None),
        rate: str | None = None,
    ) -> Checks:
        """Return how often the last predictions of this study held: at most 50.

        Each trial is asked about when 10, 20 and 40% of its steps are known, and all steps of
        the trials with lower numbers. Checked is the last value that was measured.

        Parameters
        ----------
        predictor, bounds, rate
            As for `predict`.
        """
        return check_predictions(self._curves(bounds, rate), predictor)

    def _curves(self, bounds: Bounds, rate: str | None) -> CurveReader:
        return CurveReader(
            plan=self.plan,
            records=self.records,
            metric=self.metric,
            direction=self.direction,
            bounds=bounds,
            rate=rate,
        )

    def stage_logs(self, number: int) -> list[StageLog]:
        """Return the logs of a trial's stages: the lines that they printed, also while it runs.

        Trials that share a stage share its log, also between the studies of a database. Of each
        stage only the last lines are kept; a stage that printed nothing has no log.

        Parameters
        ----------
        number
            Number of the trial.

        Raises
        ------
        ConfigurationError
            If there is no such trial.

        Examples
        --------
        ``print(study.stage_logs(7)[-1].text)``
        """
        record = self.records.get(number)
        if record is None:
            count = len(self.records)
            known = f"0 to {count - 1}" if count else "a trial of the study, which has none"
            raise ConfigurationError(f"trial must be {known}, got {number}")
        return list(stage_logs(self.database, registered(self.row, [record]), record))

    def trace(self) -> Trace:
        """Return the measured values and times of all trials, for `dasktune.simulate`.

        Raises
        ------
        ConfigurationError
            If the study has no measured value yet.

        Examples
        --------
        ``study.trace().save("digits.zarr")``
        """
        from dasktune.traces.record import trace_of

        return trace_of(
            self.plan,
            self.records.values(),
            database=self.database,
            study_id=self.row.id,
            objective=self.objective,
        )

    def optuna_study(self, storage: str | Path | BaseStorage | None = None) -> optuna.Study:
        """Return an Optuna study in memory with these trials, for ``optuna.visualization``.

        Parameters
        ----------
        storage
            An Optuna storage, the URL of a database, or the path of a SQLite file, which is
            created if it is missing. The Optuna study is written there, too, for optuna-dashboard
            and other programs. It takes the place of the one that an earlier call has written, with
            all that other programs have attached to it.

        Raises
        ------
        ConfigurationError
            If the storage has another study of this name, or other programs have added trials to
            the one that an earlier call has written.
        StorageError
            If the storage cannot be opened or written.

        Examples
        --------
        ``optuna.visualization.plot_param_importances(study.optuna_study())``
        """
        spans = spans_of(self.plan, self.stages(), self.records)
        study = optuna_study(self.name, self.objective, self.seen(self.records.values()), spans)
        if storage is not None:
            from dasktune.mirror.storages import write_snapshot

            write_snapshot(study, storage, f"{self.row.root}:{self.row.created}")
        return study

    def seen(self, records: Iterable[TrialRecord]) -> Iterator[Seen]:
        """Yield trials with their known metrics."""
        for record in records:
            yield record, dict(trial_of(self.plan, record).metrics)

    def catch_up(self) -> None:
        """Read anew what another process may have written, unless a run decides here."""
        self._contents.catch_up()

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    @without_collections()
    def _shown(self, records: Iterable[TrialRecord]) -> list[Trial]:
        shown = {record.number: record for record in records}
        if not self._contents.has_plan and self._are_few(shown.values()):
            plan, stages = self._path_of_few(shown.values())
        else:
            plan, stages = self.plan, self.stages()
        spans = spans_of(plan, stages, shown)
        return [
            trial_of(plan, record, self.metric, span=spans.get(number))
            for number, record in shown.items()
        ]

    def _are_few(self, records: Collection[TrialRecord]) -> bool:
        """Whether looking up each state of some trials is faster than reading the whole study.

        Of steps that a trial was asked for and has not reported, the store may know more than the
        database.
        """
        return len(records) <= FEW_TRIALS and all(
            record.was_trained_here
            and (record.until or 0) <= record.steps
            and 0 < record.max_steps <= MOST_STEPS
            for record in records
        )

    def _path_of_few(self, records: Collection[TrialRecord]) -> tuple[SearchPlan, list[StageRow]]:
        """Return a plan of few trials with their metrics, and the stages that trained them."""
        # A stage that a trial shares may end after the last step of the trial.
        plan = registered(self.row, records, in_full=True)
        places = {
            key: (record.number, step)
            for record in records
            for step, key in keys_of(plan, record.number, range(1, record.max_steps + 1))
        }
        for key, metrics in self.database.metrics_at(places):
            number, step = places[key]
            plan.learn(plan.node_at(number, step), step, metrics=metrics)
        stages = self.database.stages_to(list(places), ())
        return plan, [stage for stage in stages if stage.study_id == self.row.id]

    def _known_best(self) -> TrialRecord:
        if len(self.objective.metrics) > 1:
            raise ConfigurationError(
                f"best_trial needs one objective; study {self.name!r} trades off "
                f"{', '.join(self.objective.metrics)}: use best_trials"
            )
        best = self._best_record()
        if best is None:
            why = no_best_text(self.trials, self.metric, self.direction)
            raise ConfigurationError(
                f"study {self.name!r} has no trial with a finite value yet: {why}"
            )
        return best

    def _best_record(self) -> TrialRecord | None:
        records = self._contents.records_in_memory
        if records is None:
            return self.history.best_trial(self.direction)
        return best_of(records.values(), self.direction)
