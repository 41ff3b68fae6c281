"""What a study has come to: its trials, the best of them, figures and tables."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dasktune.algos.curves import Predictor
from dasktune.driver.history import History
from dasktune.driver.reuse import Recall
from dasktune.engine.event_log import Record
from dasktune.engine.trials import (
    Repeated,
    Trial,
    TrialRecord,
    best_of,
    pareto_front,
    repeats_of,
    table_of,
    trial_of,
)
from dasktune.errors import ConfigurationError, CorruptRecordError
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node, SearchPlan
from dasktune.mirror import Seen, optuna_study, spans_of
from dasktune.results.prediction import Bounds, CurveReader, Outlook, outlook_of, seconds_of_steps
from dasktune.results.summary import Summary, steps_beyond, summarise, suspensions_of
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import StageRow, StudyRow
from dasktune.types import Direction, Objective, Step

if TYPE_CHECKING:
    import optuna
    import pandas

    from dasktune.traces.trace import Trace

LOOK_SECONDS = 30.0
"""Age of what is known of the store from which on a run lists it anew."""


class StudyResults:
    """The part of a study that only reads.

    Attributes
    ----------
    name, objective, seed
        As it was created.
    """

    def __init__(
        self, row: StudyRow, database: Database, store: CheckpointStore, options: DispatchOptions
    ) -> None:
        self.name = row.name
        self.objective = objective_of(row.spec)
        self.seed: int = row.spec["seed"]
        self.store = store
        self.database = database
        self._row = row
        self._records: dict[int, TrialRecord] | None = None
        self._history = History(database, row.id)
        self._options = options
        self._dispatcher: Dispatcher | None = None
        self._recall: Recall | None = None
        self._looked_at = 0.0
        self._is_current = True
        self._catch_up()

    def __repr__(self) -> str:
        known = self._records
        count = self._history.count_trials() if known is None else len(known)
        return f"Study({self.name!r}, {count} trials)"

    @property
    def records(self) -> dict[int, TrialRecord]:
        """The present state of each trial by number; read when first asked for."""
        if self._records is None:
            self._records = self._history.trials()
        return self._records

    @property
    def plan(self) -> SearchPlan:
        """The search plan of all trials, for reports."""
        return self._graph().plan

    @property
    def metric(self) -> str:
        """Name of the metric that it optimises; the first of several."""
        return self.objective.metrics[0]

    @property
    def direction(self) -> Direction:
        """Direction of that metric."""
        return self.objective.directions[0]

    @property
    def trials(self) -> list[Trial]:
        """All trials, by number."""
        return [trial_of(self.plan, record) for record in self.records.values()]

    @property
    def best_trial(self) -> Trial:
        """The trial with the best finite value of those that did not fail.

        Raises
        ------
        ConfigurationError
            If there is none yet, or there are several objectives.
        """
        return trial_of(self.plan, self._known_best())

    @property
    def best_trials(self) -> list[Trial]:
        """The trials that no other one beats: all of the Pareto front for several objectives."""
        if len(self.objective.metrics) == 1:
            best = self._best_record()
            return [] if best is None else [trial_of(self.plan, best)]
        front = pareto_front(self.records.values(), self.objective)
        return [trial_of(self.plan, record) for record in front]

    @property
    def best_repeats(self) -> list[Repeated]:
        """The configurations that `dasktune.algos.Repeats` trained, the best mean first.

        `best_trial` is the best single one: with noise, that of the luckiest seed.
        """
        return repeats_of(self.records.values(), self.direction)

    @property
    def best_value(self) -> float:
        """The value of the best trial."""
        value = self._known_best().value
        return math.nan if value is None else value

    @property
    def best_params(self) -> Mapping[str, object]:
        """What was sampled for the best trial."""
        return self._known_best().params

    @property
    def user_attrs(self) -> dict[str, object]:
        """What users attached to the study."""
        return {note["name"]: note["value"] for note in self._history.notes("user_attr")}

    def stages(self) -> list[StageRow]:
        """Return every attempt that ran for this study, in order of start."""
        return sorted(self.database.stages(self._row.id), key=lambda row: row.started)

    def summary(self) -> Summary:
        """Return what was asked for, what was trained, and what that cost."""
        runs = [note["wall_seconds"] for note in self._runs()]
        best = self._best_record()
        stages = self.stages()
        spans = ((one.started, one.ended) for one in stages)
        return summarise(
            self.plan,
            self.records,
            steps_executed=sum(stage.steps for stage in stages),
            steps_repeated=sum(stage.repeated for stage in stages),
            wall_seconds=sum(runs),
            worker_seconds=sum(ended - started for started, ended in spans if started and ended),
            best_value=None if best is None else best.value,
            steps_beyond=steps_beyond(self.plan, self.records, stages),
            suspensions=suspensions_of(stages),
        )

    @property
    def tuners(self) -> list[Mapping[str, object]]:
        """Identities of the tuners that it was run with, in their order."""
        return [record["identity"] for record in self._history.begun]

    def decisions_of(self, place: int) -> Iterator[Record]:
        """Return every call of the tuner at a place of `tuners`, and the decisions it gave."""
        return self._history.records_of(place)

    def _runs(self) -> list[Record]:
        """Return what each run has used, as it was noted last."""
        return list({note["run"]: note for note in self._history.notes("run")}.values())

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
    ) -> Outlook:
        """Return what a trial will come to, and how sure that is; also while it is trained.

        The metric is the first of several.

        Parameters
        ----------
        number
            Which trial.
        steps
            Future steps, ascending; up to the trial's end if None. They may lie beyond it.
        predictor
            One of `dasktune.algos.curves`, also by its name such as ``"Persistence"``, or one
            of your own; the fast one if None.
        bounds
            The lowest and the highest value that the metric can have; None where it has no
            bound.
        rate
            The hyper-parameter that is the learning rate, if not ``lr`` or ``learning_rate``.

        Raises
        ------
        ConfigurationError
            If there is no such trial, nothing was measured of it yet, or something beyond the
            bounds, or no step is left.
        """
        reader = CurveReader(
            plan=self.plan,
            records=self.records,
            metric=self.metric,
            direction=self.direction,
            bounds=bounds,
            rate=rate,
        )
        step_seconds = seconds_of_steps(self.stages(), number)
        return outlook_of(
            reader, number, steps=steps, predictor=predictor, step_seconds=step_seconds
        )

    def trace(self) -> Trace:
        """Return what was measured of the trials, and what it took: for `dasktune.simulate`.

        Raises
        ------
        ConfigurationError
            If nothing was measured yet.

        Examples
        --------
        ``study.trace().save("digits.zarr")``
        """
        from dasktune.traces.record import trace_of

        return trace_of(
            self.plan,
            self.records.values(),
            database=self.database,
            study_id=self._row.id,
            objective=self.objective,
        )

    def optuna_study(self) -> optuna.Study:
        """Return an Optuna study in memory that has these trials: for ``optuna.visualization``.

        Examples
        --------
        ``optuna.visualization.plot_param_importances(study.optuna_study())``
        """
        spans = spans_of(self.plan, self.stages())
        return optuna_study(self.name, self.objective, self.seen(self.records.values()), spans)

    def seen(self, records: Iterable[TrialRecord]) -> Iterator[Seen]:
        """Yield trials with the metrics that are known of them."""
        for record in records:
            yield record, dict(trial_of(self.plan, record).metrics)

    def close(self) -> None:
        """Close the database."""
        self.database.close()

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
            return self._history.best_trial(self.direction)
        return best_of(self._records.values(), self.direction)

    def _graph(self) -> Dispatcher:
        """Return the dispatcher with all trials registered, made when first needed."""
        if self._dispatcher is None:
            self._looked_at = time.monotonic()
            recall = Recall.open(self.database, self.store, self._row.root)
            options = self._options.with_prefix(uuid4().hex[:16])

            def fill(node: Node) -> None:
                recall.read(dispatcher.plan.root_key_of(node))
                recall.fill(dispatcher.plan, node)

            dispatcher = Dispatcher(
                self._row.root, options, on_new=fill, seeded_key=seeded_key_of(self._row)
            )
            # Where the first have found all that is known of a step, no other looks for it.
            furthest_first = sorted(
                self.records.values(), key=lambda one: -max(one.steps, one.until or 0)
            )
            for trial in furthest_first:
                dispatcher.register(trial.number, trial.sequences, trial.max_steps, seed=trial.seed)
            self._dispatcher, self._recall = dispatcher, recall
        return self._dispatcher

    def _take_found(self) -> list[tuple[Node, Commit]]:
        """Return what was found in the store alone and is not written down yet."""
        return [] if self._recall is None else self._recall.take_found()

    def _catch_up(self) -> None:
        """Forget what others have decided on since, and what was not written.

        Another process may have run the study, and a run of this one may have broken off.
        """
        if self._history.read_on() or not self._is_current:
            self._records, self._dispatcher, self._is_current = None, None, True

    def _look_again(self) -> None:
        """Forget what was found in the store if that is long ago: others may have saved since."""
        if time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._dispatcher = None


def seeded_key_of(row: StudyRow) -> Callable[[int], str]:
    """Return the function that gives a study's state keys before any step by added seed."""
    if not row.spec.get("merge"):
        return lambda added: root_key(row.root, added)
    return lambda added: root_key(str(row.spec["fingerprint"]), row.spec["seed"] + added)


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
