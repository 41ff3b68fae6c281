"""Studies: what users create, run and look at."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from dasktune._driver.transfer import Transfer
from dasktune._engine.trials import Repeated, Trial, TrialRecord
from dasktune._lazy import method_of
from dasktune._results.results import StudyResults
from dasktune._study.additions import StudyAdditions
from dasktune._study.again import TrialsAgain
from dasktune._study.ask_tell import AskTell
from dasktune._study.callbacks import LoggerFeeds
from dasktune._study.changed_code import OpenCode
from dasktune._study.config import StudyConfig
from dasktune._study.evaluate import SingleTrials
from dasktune._study.export import TrialExports
from dasktune._study.memory import StudyMemory
from dasktune._study.optimize import Optimizer
from dasktune._study.parts import StudyParts
from dasktune.algos.base import Tuner, known_configurations
from dasktune.errors import ConfigurationError
from dasktune.graph.plan import SearchPlan
from dasktune.graph.tree import StageTree, build_stage_tree
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database.database import Database
from dasktune.storage.database.rows import StudyRow
from dasktune.trainer.code import pack
from dasktune.trainer.stages import StageTraining
from dasktune.types import Direction, Value

logger = logging.getLogger(__name__)

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


def _of(
    part: str, method: Callable[Concatenate[Any, Given], Returned]
) -> Callable[Concatenate[Study, Given], Returned]:
    """Return the method of a study that calls the method of one of its parts."""

    @wraps(method)
    def call(study: Study, /, *args: Given.args, **kwargs: Given.kwargs) -> Returned:
        return method(getattr(study, part), *args, **kwargs)

    return call


class Study:
    """A study: its trials, and the ways to add to them. Made by `create_study`.

    Attributes
    ----------
    name, metric, direction, seed, config, report_every
        As it was created.
    parts
        What runs change and need: its memory, its code, its loggers.
    results
        Reads the study; most of its methods are the study's own, too.
    user_attrs
        The values that users attached with `set_user_attr`.
    limit
        The limit that ended the last `optimize`, in words, if one did.
    """

    def __init__(
        self, config: StudyConfig, *, row: StudyRow, database: Database, store: CheckpointStore
    ) -> None:
        self.study_config = config
        memory = StudyMemory(row, database, store, config.options)
        self.results = StudyResults(memory)
        self.parts = StudyParts(
            name=config.name,
            config=config,
            memory=memory,
            results=self.results,
            code=OpenCode(config, row.spec),
            feeds=LoggerFeeds(self.results, config.loggers, config.folder),
        )
        self.name, self.seed = self.results.name, self.results.seed
        self.objective = self.results.objective
        self.store, self.database = store, database
        self.config: Mapping[str, object] = dict(config.config or {})
        self.report_every = config.report_every
        self._optimizer = Optimizer(self, self.parts)
        self._again = self._optimizer.again
        self._single_trials = SingleTrials(self.parts, self._optimizer)
        self._additions = StudyAdditions(memory)
        self._exports = TrialExports(self.parts)
        self._asking = AskTell(self.parts)

    def __repr__(self) -> str:
        return repr(self.results)

    def __reduce__(self) -> NoReturn:
        raise ConfigurationError(
            f"study {self.name!r} must not be pickled or copied: it has a database open; take what "
            "is needed of it, or read it elsewhere by dasktune.load_study(name, storage=...)"
        )

    _repr_html_ = method_of("dasktune.report.notebook:study_html")

    @property
    def trainer(self) -> type:
        """The class that trains.

        Raises
        ------
        ConfigurationError
            If the study was created without one.
        """
        return self.study_config.known_trainer

    # ---------------------------------------------------------------------- results

    @property
    def metric(self) -> str:
        """Name of the metric that the study optimises; the first of several."""
        return self.results.metric

    @property
    def direction(self) -> Direction:
        """Direction of `metric`."""
        return self.results.direction

    @property
    def records(self) -> Mapping[int, TrialRecord]:
        """The present record of each trial by number."""
        return self.results.records

    @property
    def plan(self) -> SearchPlan:
        """The search plan of all trials, for reports."""
        return self.results.plan

    @property
    def trials(self) -> list[Trial]:
        """All trials, by number."""
        return self.results.trials

    @property
    def best_trial(self) -> Trial:
        """The trial with the best finite value of those that did not fail.

        Raises
        ------
        ConfigurationError
            If there is none yet, or there are several objectives.
        """
        return self.results.best_trial

    @property
    def best_trials(self) -> list[Trial]:
        """The trials that no other trial beats: the Pareto front for several objectives."""
        return self.results.best_trials

    @property
    def best_repeats(self) -> list[Repeated]:
        """The configurations that `dasktune.algos.Repeats` trained, the best mean first.

        `best_trial` is the best single trial: with noise, the one with the luckiest seed.
        """
        return self.results.best_repeats

    @property
    def best_value(self) -> float:
        """The value of the best trial."""
        return self.results.best_value

    @property
    def best_params(self) -> Mapping[str, object]:
        """The sampled values of the best trial."""
        return self.results.best_params

    @property
    def user_attrs(self) -> dict[str, object]:
        """The values that users attached with `set_user_attr`."""
        return self.results.user_attrs

    @property
    def tuners(self) -> list[Mapping[str, object]]:
        """Identities of the tuners that the study was run with, in order."""
        return self.results.tuners

    @property
    def transfers(self) -> list[Transfer]:
        """The trials of other studies that samplers learned from, by tuner and study."""
        return self.results.transfers

    stages = _of("results", StudyResults.stages)
    summary = _of("results", StudyResults.summary)
    decisions_of = _of("results", StudyResults.decisions_of)
    trials_dataframe = _of("results", StudyResults.trials_dataframe)
    predict = _of("results", StudyResults.predict)
    check_predictions = _of("results", StudyResults.check_predictions)
    stage_logs = _of("results", StudyResults.stage_logs)
    trace = _of("results", StudyResults.trace)
    optuna_study = _of("results", StudyResults.optuna_study)
    seen = _of("results", StudyResults.seen)
    replay = _of("results", StudyResults.replay)
    models = _of("results", StudyResults.models)
    log = _of("results", StudyResults.log)
    trial_state = _of("_exports", TrialExports.trial_state)
    best_model = _of("_exports", TrialExports.best_model)
    chosen_state = _of("_exports", TrialExports.chosen_state)
    export = _of("_exports", TrialExports.export)

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write a self-contained HTML page about the study; return its path.

        As the last value of a notebook's cell, the path shows the page.

        Parameters
        ----------
        path
            The file; if None, a file in a local storage, else in the current folder.
        """
        written: Path = self._write_report(path)
        return written

    _write_report = method_of("dasktune._dashboard.saved:write_report")

    # --------------------------------------------------------------------- additions

    @property
    def queued(self) -> list[Mapping[str, Value]]:
        """The points that wait for the next tuner that draws configurations."""
        return self._additions.queued

    enqueue_trial = _of("_additions", StudyAdditions.enqueue_trial)
    clear_queue = _of("_additions", StudyAdditions.clear_queue)
    add_trial = _of("_additions", StudyAdditions.add_trial)
    warm_start = _of("_additions", StudyAdditions.warm_start)
    set_user_attr = _of("_additions", StudyAdditions.set_user_attr)
    record_check = _of("_additions", StudyAdditions.record_check)

    ask = _of("_asking", AskTell.ask)
    tell = _of("_asking", AskTell.tell)

    # ---------------------------------------------------------------------- running

    @property
    def limit(self) -> str | None:
        """The limit that ended the last `optimize`, in words, if one did."""
        return self._optimizer.limit

    @property
    def ending(self) -> str:
        """Why the tuner of the last `optimize` ended; empty if all its trials are complete."""
        return self._optimizer.ending

    @property
    def had_ended(self) -> bool:
        """Whether the tuner of the last `optimize` had ended before, so that nothing was left."""
        return self._optimizer.had_ended

    optimize = _of("_optimizer", Optimizer.optimize)
    optimize_async = _of("_optimizer", Optimizer.optimize_async)  # type: ignore[arg-type]
    evaluate = _of("_single_trials", SingleTrials.evaluate)
    retry_failed = _of("_again", TrialsAgain.retry_failed)
    retrain_withdrawn = _of("_again", TrialsAgain.retrain_withdrawn)
    stop = _of("_optimizer", Optimizer.stop)
    plan_of_run = _of("_optimizer", Optimizer.plan_of_run)

    def stage_tree(self, tuner: Tuner) -> StageTree:
        """Return the stage tree of a tuner's trials, as if nothing were stored.

        Its ``to_dask()`` is a plain Dask graph that trains the stages: for debugging and small
        work. Its results do not become part of the study.

        Parameters
        ----------
        tuner
            A tuner whose trials are known before they run, such as a `dasktune.algos.Grid`.
        """
        configurations = known_configurations(tuner)
        if any(configuration.seed for configuration in configurations):
            raise ConfigurationError("stage_tree needs trials of one seed, got those of Repeats")
        plan = SearchPlan(self.results.row.root)
        for number, configuration in enumerate(configurations):
            leaf = plan.register(number, configuration.sequences, tuner.max_steps)
            leaf.request(number, 0.0)
        tree = build_stage_tree(plan, lambda node: False)
        return replace(
            tree,
            run=StageTraining(
                code=pack(self.trainer),
                config=self.config,
                seed=self.seed,
                report_every=self.report_every,
            ),
        )

    def close(self) -> None:
        """Close the database and the loggers."""
        self._asking.close()
        self.parts.feeds.close()
        self.results.close()


class UnopenedStudy(Study):
    """A study of which only the configuration is known.

    Code that loads a study file to read its configuration gives this to the file. Any use of it
    but `study_config` is a `ConfigurationError`.
    """

    def __init__(self, config: StudyConfig) -> None:
        self.study_config = config

    def __getattr__(self, name: str) -> Any:
        raise ConfigurationError(
            f"study {self.study_config.name!r} is not open: only its configuration is read here"
        )
