"""MLflow: each trial of a study as a run of an experiment.

A run is known by its tag ``dasktune.run``. When a study goes on, MLflow itself says which steps its
runs have.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from dasktune._study.folder import from_folder
from dasktune.errors import ConfigurationError, StorageError, refuse, shown
from dasktune.integrations.installed import framework, refuse_missing
from dasktune.mirror import LoggedStudy, Logger, TrialRun
from dasktune.mirror.background import in_parts
from dasktune.storage.redaction import redacted, showable
from dasktune.types import Step, TrialState

__all__ = ["MLflow"]

STUDY: Final = "dasktune.study"
"""Tag of a run: the identifier of its study."""

RUN: Final = "dasktune.run"
"""Tag of a run: its identifier, the same in every process."""

FINAL: Final = "final/"
"""Before the names of metrics with which a trial has ended."""

HYPER_PARAMETER: Final = "hp/"
"""Before the names of hyper-parameters that change over the steps."""

NOTE: Final = "mlflow.note.content"
"""Tag that MLflow's page of a run shows as its description."""

MOST_METRICS = 1000
"""Most metrics that MLflow takes at a time."""

MOST_PARAMS = 100
"""Most parameters or tags that MLflow takes at a time."""

MOST_LETTERS = 5000
"""Letters of a parameter or tag that every version of MLflow takes."""


@dataclass(frozen=True)
class MLflow(Logger):
    """Writes each trial as a run of MLflow.

    A run has the metrics of each step that no other run has, the values of changing
    hyper-parameters as ``hp/<name>``, the metrics at the end as ``final/<name>``, the sampled
    values as parameters, and tags that name the trials whose runs have the shared steps.

    Parameters
    ----------
    tracking_uri
        A server or a database of MLflow, such as ``sqlite:///mlflow.db``; if None, that of
        MLflow's own settings (``MLFLOW_TRACKING_URI``). A relative path is in the folder of the
        study file.
    experiment
        Name of the experiment, which is created if it is missing; the study's name if None.

    Raises
    ------
    ConfigurationError
        If MLflow is not installed, or an argument is no text.

    Examples
    --------
    ``create_study(..., loggers=[MLflow("sqlite:///mlflow.db")])``
    """

    tracking_uri: str | os.PathLike[str] | None = None
    experiment: str | None = None

    def __post_init__(self) -> None:
        uri, experiment = self.tracking_uri, self.experiment
        problems = []
        if uri is not None and (not isinstance(uri, str | os.PathLike) or not str(uri)):
            problems.append(f"tracking_uri must be a URL or None, got {shown(uri)}")
        if experiment is not None and (not isinstance(experiment, str) or not experiment):
            problems.append(f"experiment must be a name or None, got {shown(experiment)}")
        refuse(problems)
        refuse_missing("mlflow", extra="mlflow")

    def open(self, study: LoggedStudy) -> MLflowRuns:
        """Open the experiment, and read which steps its runs of a study have.

        Raises
        ------
        ConfigurationError
            If the experiment was deleted.
        StorageError
            If MLflow cannot be reached, or refuses the address.
        """
        framework("mlflow", extra="mlflow")
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        uri = self.tracking_uri
        place = None if uri is None else from_folder(study.folder, os.fspath(uri))
        try:
            client = MlflowClient(tracking_uri=place)
            return MLflowRuns(client, self._experiment(client, study.name), study)
        except (MlflowException, OSError, SQLAlchemyError) as error:
            reason = redacted(str(error))
            raise StorageError(
                f"cannot log study {study.name!r} to MLflow: {reason}"
            ) from showable(error)

    def _experiment(self, client: Any, name: str) -> str:
        """Return the identifier of the experiment; create it if it is missing."""
        name = self.experiment or name
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            return str(client.create_experiment(name))
        if experiment.lifecycle_stage != "active":
            raise ConfigurationError(
                f"the experiment {name!r} of MLflow must be active, got a deleted one: restore it, "
                "or give another name, experiment=..."
            )
        return str(experiment.experiment_id)


@dataclass(slots=True)
class _KnownRun:
    """The contents of a run of MLflow, as far as they show what is missing."""

    run_id: str
    has_ended: bool = False
    steps: set[Step] = field(default_factory=set)
    points: set[tuple[str, Step]] = field(default_factory=set)
    """Metrics by name and step, where a write may have been cut short."""
    final: Step | None = None
    params: set[str] = field(default_factory=set)
    tags: dict[str, str] = field(default_factory=dict)


class MLflowRuns:
    """The runs of one study in an experiment.

    Parameters
    ----------
    client
        A client of MLflow.
    experiment_id
        MLflow's identifier of the experiment.
    study
        The study.
    """

    def __init__(self, client: Any, experiment_id: str, study: LoggedStudy) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self._study_id = study.id
        self._runs: dict[str, _KnownRun] = {}
        token = None
        while True:
            page = client.search_runs(
                [experiment_id], f"tags.`{STUDY}` = '{study.id}'", page_token=token
            )
            for run in page:
                self._runs[run.data.tags[RUN]] = self._known(run)
            token = page.token
            if not token:
                return

    @property
    def written(self) -> Mapping[str, set[Step]]:
        """The steps that runs have, by identifier of the run."""
        return {identifier: set(run.steps) for identifier, run in self._runs.items()}

    def write(self, run: TrialRun) -> None:
        """Write the metrics, parameters and tags of a run that MLflow lacks."""
        from mlflow.entities import Metric, Param, RunTag

        there = self._runs.get(run.id)
        if there is None:
            there = self._runs[run.id] = self._create(run)
        now, log = int(time.time() * 1000), self._client.log_batch
        points = [point for point in _points(run, there) if point[:2] not in there.points]
        metrics = [Metric(name, value, now, step) for name, step, value in points]
        params = [
            Param(_name(name), str(value)[:MOST_LETTERS])
            for name, value in run.params.items()
            if _name(name) not in there.params
        ]
        tags = {name: text for name, text in _tags(run).items() if there.tags.get(name) != text}
        for part in in_parts(params, MOST_PARAMS):
            log(there.run_id, params=part)
        for part in in_parts(metrics, MOST_METRICS):
            log(there.run_id, metrics=part)
        for part in in_parts([RunTag(*tag) for tag in tags.items()], MOST_PARAMS):
            log(there.run_id, tags=part)
        there.params |= {param.key for param in params}
        there.steps |= run.metrics.keys()
        there.tags |= tags
        self._set_status(there, run)

    def close(self) -> None:
        """Do nothing: the client holds nothing open for long."""

    def _create(self, run: TrialRun) -> _KnownRun:
        tags = {STUDY: self._study_id, RUN: run.id}
        made = self._client.create_run(self._experiment_id, tags=tags, run_name=run.name)
        return _KnownRun(made.info.run_id)

    def _set_status(self, there: _KnownRun, run: TrialRun) -> None:
        """End a run whose trial is finished; open it again if the trial goes on."""
        if run.state.is_finished:
            if not there.has_ended or there.final != run.steps:
                status = "FAILED" if run.state is TrialState.FAIL else "FINISHED"
                self._client.set_terminated(there.run_id, status)
            there.final = run.steps
        elif there.has_ended:
            self._client.update_run(there.run_id, status="RUNNING")
        there.has_ended = run.state.is_finished

    def _known(self, run: Any) -> _KnownRun:
        """Return the contents of a run; where it has not ended, also of each metric.

        A run gets its end last, so one that has ended has all that was to be written before.
        """
        known = _KnownRun(run.info.run_id, run.info.status != "RUNNING")
        known.params, known.tags = {*run.data.params}, dict(run.data.tags)
        names = [name for name in run.data.metrics if not name.startswith((FINAL, HYPER_PARAMETER))]
        if known.has_ended:
            known.final = int(known.tags.get("steps", 0))
        for name in names if known.has_ended else run.data.metrics:
            steps = {metric.step for metric in self._client.get_metric_history(known.run_id, name)}
            if name in names:
                known.steps |= steps
            if not known.has_ended:
                known.points |= {(name, step) for step in steps}
        if not known.has_ended:
            # Steps with a part of their metrics are to be completed.
            known.steps = {
                step for step in known.steps if all((name, step) in known.points for name in names)
            }
        return known


def _points(run: TrialRun, there: _KnownRun) -> Iterator[tuple[str, Step, float]]:
    """Yield name, step and value of all metrics of a run."""
    for step, metrics in sorted(run.metrics.items()):
        for name, value in metrics.items():
            yield _name(name), step, float(value)
        for name, current in run.hp.get(step, {}).items():
            if isinstance(current, bool | int | float):
                yield _name(f"{HYPER_PARAMETER}{name}"), step, float(current)
    if run.state.is_finished and there.final != run.steps:
        for name, value in run.values.items():
            yield _name(f"{FINAL}{name}"), run.steps, float(value)


def _tags(run: TrialRun) -> dict[str, str]:
    tags = run.tags()
    if run.shared:
        tags[NOTE] = f"Shared steps are in the runs of other trials: {tags['shared']}"
    return {_name(name): text[:MOST_LETTERS] for name, text in tags.items()}


def _name(name: str) -> str:
    """Return a name that MLflow takes.

    Examples
    --------
    >>> _name("hp/lr (2)")
    'hp/lr _2_'
    """
    return re.sub(r"[^\w\-. /]", "_", name)[:250]
