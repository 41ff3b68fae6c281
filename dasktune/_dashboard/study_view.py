"""The parts of the page about one study, as JSON documents."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar, cast

from dasktune._dashboard.learning_curves import Curve, CurveCache, points_of
from dasktune._dashboard.lineage import StudyPlan, origins, users
from dasktune._dashboard.tree_columns import tree_columns
from dasktune._dashboard.trial_table import TrialTable
from dasktune._driver.history import record_of
from dasktune._engine.trials import TrialRecord
from dasktune._garbage import without_collections
from dasktune._results.prediction import CurveReader, TrialPrediction, predict_trial
from dasktune._results.rows import objective_of, registered
from dasktune._results.state_words import state_word
from dasktune._results.trial_paths import MOST_STEPS, last_step
from dasktune._study.from_elsewhere import pending_changes
from dasktune.errors import ConfigurationError, CorruptRecordError
from dasktune.mirror import optuna_study
from dasktune.report.sequence_plot import plot_sequence, runs_of
from dasktune.report.status import status_of
from dasktune.report.tree_layout import first_trials
from dasktune.sequences import Sequence as SequenceOfValues
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StudyRow
from dasktune.storage.redaction import redacted
from dasktune.types import Objective, TrialState

MOST_CURVES = 100
"""Curves that are shown unless the user chooses trials."""

MOST_POINTS = 150
"""Points of a shown curve."""

MOST_CHOSEN = 400
"""Trials that a user may choose at once."""

MOST_PLOTTED = 1000
"""Trials in the plots of hyper-parameters."""

MOST_WEIGHED = 1000
"""Complete trials of which the importance of hyper-parameters is computed."""

PREDICTED_SHARES = (0.5, 0.95)
"""Probabilities of the intervals of a prediction."""

LEAST_TRIALS = 10
"""Complete trials without which nothing is said about importance."""

SLOW_SECONDS = 10.0
"""How long an answer that takes seconds to compute stays good while the study changes."""

FRESH_SECONDS = 1.0
"""How long an answer stays good for other requests."""

Result = TypeVar("Result")


@dataclass(slots=True)
class Kept:
    """Answers that stay good for a while, or until something changes.

    One thread computes an answer at a time; others that ask for the same wait for it.
    """

    _answers: dict[str, tuple[object, float, Any]] = field(default_factory=dict)
    _locks: dict[str, threading.Lock] = field(default_factory=dict)

    def get(self, name: str, mark: object, seconds: float, compute: Callable[[], Result]) -> Result:
        """Return the answer of a name: the last one if its mark is the same or it is young.

        Parameters
        ----------
        seconds
            The age up to which an answer with another mark is given, too.
        """
        with self._locks.setdefault(name, threading.Lock()):
            before = self._answers.get(name)
            if before is not None:
                mark_before, when, answer = before
                if mark_before == mark or time.monotonic() - when < seconds:
                    return answer  # type: ignore[no-any-return]
            answer = compute()
            self._answers[name] = mark, time.monotonic(), answer
            return answer


class StudyView:
    """Reads one study for the page; safe to use from several threads.

    Parameters
    ----------
    fresh_seconds
        How long the table of trials and the status are not read again; infinite for a report.
    offset
        Added to the number of a study in the database; the sum is its number on the page.
    """

    def __init__(
        self,
        row: StudyRow,
        database: Database,
        fresh_seconds: float = FRESH_SECONDS,
        *,
        offset: int = 0,
    ) -> None:
        self.offset = offset
        self.row, self.database, self.fresh_seconds = row, database, fresh_seconds
        self.objective = objective_of(row.spec)
        self.table = TrialTable(database, row.id, self.objective)
        self.kept = Kept()
        self._curves = CurveCache(row, database)
        self._records: dict[int, TrialRecord] = {}
        self._records_version = 0

    def overview(self) -> dict[str, object]:
        """Return the status of the study, with the version of its table of trials."""
        version = self.refreshed()
        status = self.kept.get(
            "status", object(), self.fresh_seconds, lambda: status_of(self.database, self.row)
        )
        is_alive = status.driver is not None and status.driver.is_alive
        document = status.to_json()
        for failure in document["failures"]:  # type: ignore[attr-defined]
            failure["frames"] = user_line(failure["traceback"])
        return {
            **document,
            "version": version,
            "created": self.row.created,
            "trainer": self.row.spec.get("trainer"),
            "is_alive": is_alive,
            "state_words": {
                state.value: state_word(state, is_driven=is_alive) for state in TrialState
            },
            "driver_words": (
                None if status.driver is None else status.driver.in_words(status.read_at)
            ),
            "metrics": list(self.objective.metrics),
            "directions": [direction.value for direction in self.objective.directions],
        }

    def refreshed(self) -> int:
        """Bring the table of trials up to date if it is no longer fresh; return its version."""
        return self.kept.get("table", object(), self.fresh_seconds, self.table.refresh)

    def curves(self, metric: str, numbers: Sequence[int] = ()) -> dict[str, object]:
        """Return learning curves: of some trials, or of a sample of all.

        Parameters
        ----------
        metric
            The metric; the study's first one if empty.
        numbers
            The trials; if empty the best, and others spread evenly.

        Raises
        ------
        ConfigurationError
            If a trial is unknown, or there are too many.
        """
        version = self.refreshed()
        if len(numbers) > MOST_CHOSEN:
            raise ConfigurationError(f"at most {MOST_CHOSEN} trials, got {len(numbers)}")
        if unknown := [number for number in numbers if number not in self.table.entries]:
            raise ConfigurationError(f"there is no trial {unknown[0]}")
        sample = [entry.number for entry in self.table.sampled(MOST_CURVES)]
        chosen = list(numbers or sample)
        known = self.reports(self.records(chosen))
        metrics = dict.fromkeys([*self.objective.metrics])
        for curve in known.values():
            metrics |= {name: None for values in curve.values() for name in values}
        shown = metric or self.objective.metrics[0]
        curves = []
        for number in chosen:
            if number in known:
                steps, values = points_of(known[number], shown, MOST_POINTS)
                curves.append({"trial": number, "steps": steps, "values": values})
        return {
            "version": version,
            "metric": shown,
            "metrics": list(metrics),
            "is_sample": not numbers and len(self.table.entries) > len(chosen),
            "total": len(self.table.entries),
            "curves": curves,
        }

    def reports(self, records: Sequence[TrialRecord]) -> Mapping[int, Curve]:
        """Return the reports of trials, by number."""
        entries = self.table.entries

        def mark(number: int) -> object:
            entry = entries.get(number)
            return None if entry is None else (entry.state, entry.steps, entry.until)

        return self._curves.curves(records, mark)

    def records(self, numbers: Iterable[int]) -> list[TrialRecord]:
        """Return the records of trials."""
        rows = self.database.some_trials(self.row.id, numbers)
        return [record_of(row) for row in rows]

    def trial(self, number: int) -> dict[str, object]:
        """Return all about one trial: its sequences, reports, origins and error.

        Raises
        ------
        ConfigurationError
            If there is no such trial.
        """
        record = self._known(number)
        end = max(1, last_step(record), record.steps)
        curve = self.reports([record]).get(number, {})
        names = dict.fromkeys(name for metrics in curve.values() for name in metrics)
        plan = registered(self.row, [record])
        return {
            "number": number,
            "state": record.state.value,
            "steps": record.reached,
            "until": record.until,
            "max_steps": record.max_steps,
            "values": record.values,
            "seed": record.seed,
            "tuner": record.tuner,
            "params": {name: str(value) for name, value in record.params.items()},
            "sequences": {name: repr(function) for name, function in record.sequences.items()},
            "plot": _sequences_plot(record, end),
            "user_attrs": dict(record.user_attrs),
            "message": redacted(record.message),
            "traceback": redacted(record.traceback),
            "frames": user_line(record.traceback),
            "curves": {name: points_of(curve, name, MOST_POINTS) for name in names},
            **origins(self.database, plan, record, self._study_names(), self.offset),
        }

    def lineage(self, number: int, others: Sequence[StudyView]) -> dict[str, object]:
        """Return the trials of all studies that use the states of a trial.

        Parameters
        ----------
        others
            The views of all studies of the database, this one too.

        Raises
        ------
        ConfigurationError
            If there is no such trial.
        """
        record = self._known(number)
        own = registered(self.row, [record])
        nodes = own.nodes_of(number)
        if not nodes or nodes[0].parent is None:
            return {"users": [], "compared": [self.row.name], "studies": len(others)}
        root = nodes[0].parent.key_at(0)
        # The key before any step is a hash of fingerprint and seed, and of more where nothing is
        # merged: studies that differ in these have no state in common.
        plans = []
        for view in others:
            with suppress(CorruptRecordError, KeyError):  # a damaged study; the listing names it
                if _fingerprint(view.row) == _fingerprint(self.row):
                    plans.append(view.planned())
        compared = {"compared": [plan.name for plan in plans], "studies": len(others)}
        return {"users": users(record, root, plans), **compared}

    def prediction(self, number: int) -> dict[str, object]:
        """Return the predicted future of a trial, by its own curve and those of a sample.

        `dasktune predict` looks at all trials; this at the best and some others, to be quick.

        Raises
        ------
        ConfigurationError
            If there is no such trial.
        """
        self.refreshed()
        record = self._known(number)
        numbers = {number, *(entry.number for entry in self.table.sampled(MOST_CURVES))}
        known = self.records(sorted(numbers))
        try:
            reader = self._curve_reader([each for each in known if each.was_trained_here])
            prediction = predict_trial(reader, record.number)
        except ConfigurationError as error:
            return {"why": str(error)}
        return predicted_document(prediction, len(known))

    def _curve_reader(self, records: Sequence[TrialRecord]) -> CurveReader:
        """Return a reader of the curves of some trials."""
        plan, reports = registered(self.row, records), self.reports(records)
        for record in records:
            for node in plan.nodes_of(record.number) if record.number in plan.paths else ():
                for step, metrics in reports.get(record.number, {}).items():
                    if node.start < step <= node.stop:
                        plan.learn(node, step, metrics=metrics)
        return CurveReader(
            plan=plan,
            records={record.number: record for record in records},
            metric=self.objective.metrics[0],
            direction=self.objective.directions[0],
        )

    def planned(self) -> StudyPlan:
        """Return the plan of all trials, at most 10 seconds old while the study changes."""
        version = self.refreshed()
        return self.kept.get(
            "plan", version, SLOW_SECONDS, lambda: self.plan_of(self._all_records())
        )

    @without_collections()
    def plan_of(self, records: Sequence[TrialRecord]) -> StudyPlan:
        """Return the plan of some trials."""
        plan = registered(self.row, records)
        first = first_trials(plan, list(plan))
        return StudyPlan(
            id=self.row.id + self.offset,
            name=self.row.name,
            plan=plan,
            records=records,
            first=first,
        )

    def tree(self) -> dict[str, object]:
        """Return the stage tree of all trials."""
        version = self.refreshed()
        columns = self.kept.get("tree", version, SLOW_SECONDS, lambda: tree_columns(self.planned()))
        return {**columns, "version": version}

    def points(self) -> dict[str, object]:
        """Return hyper-parameters and values of a sample of trials, as columns."""
        version = self.refreshed()
        sample = self.table.sampled(MOST_PLOTTED)
        return {
            "version": version,
            "total": len(self.table.entries),
            "number": [entry.number for entry in sample],
            "values": [
                [entry.values[at] for entry in sample] for at in range(len(self.objective.metrics))
            ],
            "params": {name: [entry.params.get(name) for entry in sample] for name in self.names},
        }

    @property
    def names(self) -> list[str]:
        """The names of all hyper-parameters that were sampled."""
        return list(self.table.names)

    def importance(self) -> dict[str, object]:
        """Return the importance of each hyper-parameter for the first objective."""
        version = self.refreshed()
        return self.kept.get("importance", version, SLOW_SECONDS, self._importance)

    def pending(self) -> dict[str, object]:
        """Return the changes that wait for a run, and the known coordinates of the space."""
        return pending_changes(self.database, self.row)

    def _importance(self) -> dict[str, object]:
        entries = list(self.table.entries.values())
        weighed = [each.number for each in entries if each.state == "COMPLETE"]
        if len(weighed) > MOST_WEIGHED:
            weighed = [weighed[at * len(weighed) // MOST_WEIGHED] for at in range(MOST_WEIGHED)]
        records = [
            replace(record, values=record.values[:1])
            for record in self.records(weighed)
            if record.values and record.state is TrialState.COMPLETE and record.point
        ]
        if len(records) < LEAST_TRIALS:
            complete = sum(each.state == "COMPLETE" for each in entries)
            return {
                "why": f"needs {LEAST_TRIALS} complete trials whose values were drawn, "
                f"{len(records)} of {complete} are such"
            }
        import optuna

        objective = Objective(
            metrics=self.objective.metrics[:1], directions=self.objective.directions[:1]
        )
        logging.getLogger("optuna").setLevel(logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = optuna_study(self.row.name, objective, ((each, {}) for each in records))
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            try:
                known = optuna.importance.get_param_importances(study, evaluator=evaluator)
            except (ValueError, RuntimeError) as error:
                return {"why": str(error)}
        return {"names": list(known), "shares": list(known.values()), "trials": len(records)}

    @without_collections()
    def _all_records(self) -> list[TrialRecord]:
        """Return all trials; only those that have changed since the last time are read again."""
        version = self.table.version
        changed = self.table.changed(self._records_version)
        is_most = 2 * len(changed) > len(self.table.entries)
        rows = (
            self.database.trials(self.row.id)
            if is_most
            else self.database.some_trials(self.row.id, changed)
        )
        self._records |= {row.number: record_of(row) for row in rows}
        self._records_version = version
        return [record for _, record in sorted(self._records.items())]

    def _known(self, number: int) -> TrialRecord:
        records = self.records([number])
        if not records:
            raise ConfigurationError(f"there is no trial {number}")
        return records[0]

    def _study_names(self) -> dict[int, str]:
        rows, unreadable = self.database.readable_studies()
        return {row.id: row.name for row in rows} | {each.id: each.study for each in unreadable}

    def trials(self, since: int = 0) -> dict[str, object]:
        """Return the rows of the trials that changed after a version."""
        self.refreshed()
        return self.table.changes(since)


def load_importance() -> None:
    """Import what computes importance, which takes seconds: the first reader need not wait."""
    import optuna

    optuna.importance.PedAnovaImportanceEvaluator()


def predicted_document(prediction: TrialPrediction, trials: int) -> dict[str, object]:
    """Return the prediction of a trial, from the curves of some `trials`, at a few steps."""
    steps, medians = prediction.steps, prediction.medians
    spans = {share: prediction.interval(share) for share in PREDICTED_SHARES}
    places = sorted({at * (len(steps) - 1) // MOST_POINTS for at in range(MOST_POINTS + 1)})
    return {
        "metric": prediction.metric,
        "trials": trials,
        "steps": [steps[at] for at in places],
        "medians": [medians[at] for at in places],
        "intervals": [
            {"share": share, "ends": [span[at] for at in places]} for share, span in spans.items()
        ],
    }


def _fingerprint(row: StudyRow) -> object:
    return row.spec.get("fingerprint"), bool(row.spec.get("merge"))


def _sequences_plot(record: TrialRecord, steps: int) -> str:
    """Return the drawing of a trial's sequences; empty if none changes in its steps."""
    changing = {
        name: function
        for name, function in record.sequences.items()
        if len(runs_of(function, min(steps, MOST_STEPS))) > 1
    }
    if not changing:
        return ""
    ends = [function.end for function in changing.values() if function.end is not None]
    shown = cast(Mapping[str, SequenceOfValues], changing)
    return plot_sequence(shown, min([steps, *ends])).__html__()


def user_line(traceback: str) -> str:
    r"""Return the innermost line of a traceback that is not of a library: the user's own.

    Examples
    --------
    >>> user_line('Traceback\n  File "/a/site-packages/x.py", line 1, in f\n    x()\n')
    ''
    >>> user_line('Traceback\n  File "/home/me/tune.py", line 7, in train\n    x()\n')
    'File "/home/me/tune.py", line 7, in train\nx()'
    """
    lines = traceback.splitlines()
    own = ""
    for at, line in enumerate(lines):
        place = line.strip()
        is_frame = place.startswith("File ") and ", line " in place
        if is_frame and not any(word in place for word in LIBRARIES):
            code = lines[at + 1].strip() if at + 1 < len(lines) else ""
            own = place if code.startswith("File ") else f"{place}\n{code}"
    return redacted(own)


LIBRARIES = ("site-packages", "dist-packages", "/lib/python", "/dasktune/", "<frozen")
"""Parts of paths of files that no user wrote."""


def document_of(value: object) -> object:
    """Return a value as JSON can hold it: NaN and infinities become None.

    Examples
    --------
    >>> document_of({"a": [1.0, float("nan")], "b": (True, "x")})
    {'a': [1.0, None], 'b': [True, 'x']}
    """
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): document_of(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [document_of(item) for item in value]
        case None | bool() | int() | str():
            return value
        case _ if hasattr(value, "__dataclass_fields__"):
            return document_of(asdict(value))  # type: ignore[call-overload]
        case _:
            return str(value)


def json_of(value: object) -> str:
    """Return a value as JSON: at once where JSON can hold it as it is, which is much faster."""
    encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
    try:
        return encode(value)
    except (TypeError, ValueError):
        return encode(document_of(value))
