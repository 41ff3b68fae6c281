"""The results of a study, read-only: its trials, the best of them, figures and tables."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dasktune._driver.audit_notes import differences_of, figures_of
from dasktune._driver.history import History, TunerPlace
from dasktune._driver.numerics import PORTABLE
from dasktune._driver.reuse import KnownStates
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
from dasktune._results.prediction import (
    Bounds,
    Checks,
    CurveReader,
    TrialPrediction,
    check_predictions,
    predict_trial,
    seconds_of_steps,
)
from dasktune._results.stage_logs import StageLog, stage_logs
from dasktune._results.summary import (
    Summary,
    models_of,
    steps_beyond,
    summarise,
    suspensions_of,
    trials_on_several_classes,
)
from dasktune._results.trial_paths import MOST_STEPS, keys_of, last_step
from dasktune._results.withdrawn import withdrawn_of
from dasktune._words import counted
from dasktune.algos.base import Tuner
from dasktune.algos.curves import Predictor
from dasktune.algos.forest.ranks import ModelWeight
from dasktune.errors import ConfigurationError, CorruptRecordError, InternalError
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node, SearchPlan
from dasktune.mirror import Seen, optuna_study, spans_of
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.database.many_rows import many_rows
from dasktune.storage.database.schema import StageRow, StudyRow
from dasktune.types import Direction, Objective, Step

if TYPE_CHECKING:
    import optuna
    import pandas
    from optuna.storages import BaseStorage

    from dasktune.traces.trace import Trace


FEW_TRIALS = 10
"""Trials that are shown by looking up their states; for more, the whole study is read."""


class StudyResults:
    """Reads a study: from its database, and from the store where the database has gaps.

    Parameters
    ----------
    row
        The study's row in the database.
    database
        The database.
    store
        The checkpoint store.
    options
        How the dispatcher plans stages and saves.

    Attributes
    ----------
    name, objective, seed
        As the study was created.
    history
        Its event log and notes.
    is_current
        Whether memory agrees with the database; False while a run decides.
    """

    def __init__(
        self, row: StudyRow, database: Database, store: CheckpointStore, options: DispatchOptions
    ) -> None:
        self.name = row.name
        self.objective = objective_of(row.spec)
        self.seed: int = row.spec["seed"]
        self.store = store
        self.database = database
        self.row = row
        self._records: dict[int, TrialRecord] | None = None
        self.history = History(database, row.id)
        self.options = options
        self._dispatcher: Dispatcher | None = None
        self._counted: SearchPlan | None = None
        """The plan that counts the steps of a settled study, until a trial may change."""
        self._known_states: KnownStates | None = None
        self._looked_at = 0.0
        self.is_current = True
        self.catch_up()

    def __repr__(self) -> str:
        known = self._records
        count = self.history.count_trials() if known is None else len(known)
        return f"Study({self.name!r}, {counted(count, 'trial')})"

    @property
    def records(self) -> dict[int, TrialRecord]:
        """The present record of each trial by number; read when first asked for."""
        if self._records is None:
            with many_rows():
                self._records = self.history.trials()
        return self._records

    @property
    def plan(self) -> SearchPlan:
        """The search plan of all trials, for reports."""
        return self.dispatcher().plan

    @property
    def known_states(self) -> KnownStates:
        """The states that the plan was filled with, and that it is filled with from now on."""
        self.dispatcher()
        if self._known_states is None:
            raise InternalError("the plan of a study must be filled from known states")
        return self._known_states

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

    @many_rows()
    def stages(self) -> list[StageRow]:
        """Return every attempt that ran for this study, in order of start."""
        return sorted(self.database.stages(self.row.id), key=lambda row: row.started)

    @many_rows()
    def summary(self) -> Summary:
        """Return the steps that were requested and trained, and their cost."""
        plan = self._counted_plan()
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
            withdrawn=withdrawn_of(self.history, self.records.values),
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
        """Return the time and steps that the earlier runs of a tuner used.

        Parameters
        ----------
        place
            The tuner's place in `tuners`.
        with_best
            Whether to look for its best loss, too.
        """
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
        """
        place = self._known_place(tuner)
        return replay(place.tuner, self.history.records_of(place.number), self.objective)

    def models(self, tuner: Tuner) -> list[ModelWeight]:
        """Return the models of a tuner's space, with their weights after its last record.

        They are those of a `dasktune.Forest`; other samplers have none. Each has its
        complexity, its priority, and its number of trials.

        Raises
        ------
        ConfigurationError
            If the study has not run this tuner.
        """
        place = self._known_place(tuner)
        replay(place.tuner, self.history.records_of(place.number), self.objective)
        return place.tuner.model_weights

    def log(self, tuner: Tuner) -> list[Document]:
        """Return the event log of a tuner: each call's cause and decisions, in order.

        Raises
        ------
        ConfigurationError
            If the study has not run this tuner.
        """
        return list(self.history.documents_of(self._known_place(tuner).number))

    def _known_place(self, tuner: Tuner) -> TunerPlace:
        self.catch_up()
        place = self.history.place_of(copy.deepcopy(tuner))
        if not place.records:
            raise ConfigurationError(f"study {self.name!r} has not run this tuner yet")
        return place

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

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def _counted_plan(self) -> SearchPlan:
        """Return the plan to count steps in.

        If every trial has reported all that was requested, the records alone tell which steps are
        known: no metrics are read, and no state is looked up. Else it is the plan with all of them.
        """
        records = [record for record in self.records.values() if record.was_trained_here]
        known = self._counted  # another thread may forget it
        if self._dispatcher is None and known is not None:
            return known
        if self._dispatcher is not None or any(
            record.asked > record.reached or record.alone is not None for record in records
        ):
            return self.plan
        plan = registered(self.row, records, in_full=True)
        for record in records:
            if last := min(record.steps, record.max_steps):
                plan.learn(plan.node_at(record.number, last), last, metrics={})
        if self._dispatcher is None:
            self._counted = plan
        return plan

    @many_rows()
    def _shown(self, records: Iterable[TrialRecord]) -> list[Trial]:
        shown = {record.number: record for record in records}
        if self._dispatcher is None and self._are_few(shown.values()):
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
            raise ConfigurationError(f"study {self.name!r} has no trial with a finite value yet")
        return best

    def _best_record(self) -> TrialRecord | None:
        if self._records is None:
            return self.history.best_trial(self.direction)
        return best_of(self._records.values(), self.direction)

    def dispatcher(self) -> Dispatcher:
        """Return the dispatcher with all trials registered; it is made when first needed."""
        if self._dispatcher is None:
            self._looked_at, self._counted = time.monotonic(), None
            known_states = KnownStates.open(self.database, self.store, self.row.root)
            options = self.options.with_prefix(uuid4().hex[:16])

            def fill(node: Node) -> None:
                known_states.read(dispatcher.plan.root_key_of(node))
                known_states.fill(dispatcher.plan, node)

            dispatcher = Dispatcher(
                self.row.root,
                options,
                on_new=fill,
                may_place=lambda: not known_states.unread,
                seeded_key=seeded_key_of(self.row),
                alone_key=alone_key_of(self.row),
            )
            # The longest trials look up most states; the others find these already there.
            furthest_first = sorted(
                self.records.values(), key=lambda trial: -max(trial.steps, trial.until or 0)
            )
            with many_rows():
                for trial in furthest_first:
                    dispatcher.register(
                        *(trial.number, trial.keyed_sequences, trial.max_steps, trial.seed),
                        is_alone=trial.alone is not None,
                        numerics=trial.numeric_class,
                    )
            unread = tuple(known_states.unread)
            commits = known_states.read_commits(unread)
            dispatcher.learn(known_states.receive(unread, commits))
            self._dispatcher, self._known_states = dispatcher, known_states
        return self._dispatcher

    def catch_up(self) -> None:
        """Forget the trials in memory if the database may have newer ones.

        Another process may have run the study, or a run of this process broke off.
        """
        if self.history.read_on() or not self.is_current:
            self._records, self._dispatcher, self._counted = None, None, None
            self.is_current = True

    def look_again(self, seconds: float) -> None:
        """Forget a store listing older than `seconds`: other studies may have saved since."""
        if time.monotonic() - self._looked_at > seconds:
            self._dispatcher, self._counted = None, None


def seeded_key_of(row: StudyRow) -> Callable[[int], str]:
    """Return the function that gives a study's state keys before any step by added seed."""
    if not row.spec.get("merge"):
        return lambda added: root_key(row.root, added)
    return lambda added: root_key(str(row.spec["fingerprint"]), row.spec["seed"] + added)


def alone_key_of(row: StudyRow) -> str:
    """Return the state key before any step that a study's trials have which are trained alone.

    It is joined with their numbers. Other studies have others, also of the same trainer.
    """
    return root_key(f"alone {row.root} {row.created!r}", 0)


def plan_of(row: StudyRow) -> SearchPlan:
    """Return the plan of a study, without trials."""
    return SearchPlan(
        row.root,
        merge=bool(row.spec.get("merge")),
        seeded_key=seeded_key_of(row),
        alone_key=alone_key_of(row),
    )


def registered(
    row: StudyRow, records: Iterable[TrialRecord], *, in_full: bool = False
) -> SearchPlan:
    """Return a plan with trials of a study, each up to the last step that a stage may reach.

    `in_full` takes them to the last step that they may ever reach.
    """
    plan = plan_of(row)
    for record in records:
        until = record.max_steps if in_full else last_step(record)
        if until and record.was_trained_here:
            register(plan, record, until)
    return plan


def register(plan: SearchPlan, record: TrialRecord, until: Step) -> Node:
    """Make a trial known to a plan up to a step, as its study has it; return its last node."""
    return plan.register(
        *(record.number, record.keyed_sequences, until, record.seed),
        is_alone=record.alone is not None,
        numerics=record.numeric_class,
    )


def objective_of(spec: Mapping[str, Any]) -> Objective:
    """Return the objective of a study's description: a name, or a list of them.

    Raises
    ------
    CorruptRecordError
        If it describes none.
    """
    try:
        metrics, directions = spec["metric"], spec["direction"]
        if isinstance(metrics, str):
            metrics, directions = [metrics], [directions]
        return Objective(metrics=tuple(metrics), directions=tuple(map(Direction, directions)))
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptRecordError(f"the description of a study cannot be read: {error!r}") from error
