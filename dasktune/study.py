"""Studies: what users create, run and look at."""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dasktune.algos.base import Tuner, known_configurations
from dasktune.algos.single import SingleTrial
from dasktune.engine import Engine, Outcome
from dasktune.errors import ConfigurationError, TrainerError, refuse
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.dispatch import Dispatcher
from dasktune.graph.keys import root_key
from dasktune.graph.plan import Node, SearchPlan
from dasktune.graph.tree import StageTree, build_stage_tree
from dasktune.history import History, Place
from dasktune.interrupt import interruptible
from dasktune.job import JobPlan
from dasktune.recall import Recall
from dasktune.recorder import Recorder
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore
from dasktune.storage.database import Database
from dasktune.storage.schema import StageRow, StudyRow
from dasktune.summary import Summary, savings_line, summarise
from dasktune.trainer.code import pack
from dasktune.trainer.stages import StageTraining
from dasktune.trials import Trial, TrialRecord, best_of, table_of, trial_of
from dasktune.types import Direction, Metrics, Objective, Step, TrialState

if TYPE_CHECKING:
    import pandas
    from distributed import Client

    from dasktune.runner import DaskRunner

logger = logging.getLogger(__name__)


class Study:
    """A study: its trials, and the ways to add to them. Made by `create_study`.

    Attributes
    ----------
    name, metric, direction, seed
        As it was created.
    user_attrs
        What users attached with `set_user_attr`.
    """

    def __init__(
        self,
        trainer: type,
        *,
        row: StudyRow,
        database: Database,
        store: CheckpointStore,
        config: Mapping[str, object],
        report_every: int,
        options: DispatchOptions,
    ) -> None:
        self.trainer = trainer
        self.name = row.name
        self.metric: str = row.spec["metric"]
        self.direction = Direction(row.spec["direction"])
        self.objective = Objective.single(self.metric, self.direction)
        self.seed: int = row.spec["seed"]
        self.config = config
        self.report_every = report_every
        self.store = store
        self.database = database
        self._row = row
        self._options = options
        self._records: dict[int, TrialRecord] = {}
        self._history = History(database, row.id)
        self._dispatcher: Dispatcher | None = None
        self._runner: DaskRunner | None = None
        self._running = threading.Lock()
        self._is_stopping: bool | None = None  # None while nothing runs
        self._is_current = True
        self._warned = False
        self._catch_up()

    def __repr__(self) -> str:
        return f"Study({self.name!r}, {len(self._records)} trials)"

    # ---------------------------------------------------------------------- running

    def optimize(
        self,
        tuner: Tuner,
        *,
        client: Client | None = None,
        workers: int | None = None,
        progress: bool | None = None,
        last_line: bool = True,
        allow_failed_check: bool = False,
    ) -> None:
        """Run a tuner until it has ended; a known one goes on where it was.

        Parameters
        ----------
        tuner
            What to run. One whose identity (class and arguments) the study has seen is
            continued, and returns at once if it had ended.
        client
            Connected to the Dask cluster to run on; None starts a local one.
        workers
            Size of the local cluster; one worker per core if None.
        progress
            Show a live display; None shows it on a terminal.
        last_line
            Say on standard error, at the end, what merging saved.
        allow_failed_check
            Merge trials although `dasktune check` found that this trainer does not resume
            exactly.

        Raises
        ------
        ConfigurationError
            If the study cannot be run as it is asked for, or is running already.
        ClusterError
            If the workers cannot run it.
        StorageError
            If states or records cannot be stored, or another process runs the study; what
            was reported is safe.
        KeyboardInterrupt
            After ctrl-C or SIGTERM, once what ran has been saved; the second one at once.
        """
        refuse(_run_problems(tuner, client, workers))
        # Tuners have a state: the caller's stays as it is, and can be used again.
        tuner = copy.deepcopy(tuner)
        with self._alone():
            self._catch_up()
            place = self._history.place_of(tuner)
            if place.has_ended:
                logger.info("study %s: this tuner has ended already", self.name)
                return
            self._check_resumable(allow_failed_check)
            with (
                self._timed(place.number),
                interruptible(self.stop),
                self._client(client, workers) as connected,
            ):
                self._is_current = False  # until all that is decided has been written
                self._run(place, connected, progress)
                self._is_current = True
        if last_line and self._history.place_of(tuner).has_ended:
            sys.stderr.write(f"{self.name}: {savings_line(self.summary())}\n")

    def evaluate(
        self,
        hp: Mapping[str, object],
        steps: Step,
        *,
        client: Client | None = None,
        workers: int | None = None,
    ) -> Metrics:
        """Train one configuration to `steps`, now, and return its metrics [Hippo Fig. 11].

        It becomes a trial of the study; what has been trained before is not trained again.

        Parameters
        ----------
        hp
            Values and sequences by name.
        steps
            How far.

        Raises
        ------
        TrainerError
            If its training failed, or was stopped (`stop`) before its end.
        """
        tuner = SingleTrial(hp, steps)
        place = self._history.place_of(tuner).number
        self.optimize(tuner, client=client, workers=workers, progress=False, last_line=False)
        trial = next((one for one in self.trials if self._records[one.number].tuner == place), None)
        if trial is not None and trial.error is not None:
            raise TrainerError(self._records[trial.number].message, trial.error)
        if trial is None or trial.state is not TrialState.COMPLETE:
            raise TrainerError(
                f"study {self.name!r}: evaluate was stopped before step {steps}; the same call "
                "goes on where it was"
            )
        return trial.metrics[trial.steps]

    def stage_tree(self, tuner: Tuner) -> StageTree:
        """Return the stages of a tuner's trials, each in full, from nothing.

        Its ``to_dask()`` is a plain Dask graph that trains them: for looking, debugging
        and small work. Nothing of it becomes part of the study.

        Parameters
        ----------
        tuner
            One whose trials are known before they run, such as a `dasktune.algos.Grid`.
        """
        configurations = known_configurations(tuner)
        plan = SearchPlan(self._row.root)
        for number, configuration in enumerate(configurations):
            leaf = plan.register(number, configuration.sequences, tuner.max_steps)
            leaf.requests[number] = 0.0
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

    def stop(self) -> bool:
        """Let a running `optimize` save what runs and return; it can be continued.

        Returns whether one was running; its cluster may be starting still.
        """
        if self._is_stopping is None:
            return False
        self._is_stopping = True
        if self._runner is not None:
            self._runner.request_stop()
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse to run two tuners at a time: they would share one dispatcher."""
        if not self._running.acquire(blocking=False):
            raise ConfigurationError(
                f"study {self.name!r} must run one tuner at a time; another thread is running one"
            )
        try:
            yield
        finally:
            self._running.release()

    @contextmanager
    def _timed(self, place: int) -> Iterator[None]:
        """Let the study be stopped meanwhile, and take note of the time that it takes."""
        began = time.monotonic()
        self._is_stopping = False
        try:
            yield
        finally:
            self._is_stopping = None
            self._history.note("run", place=place, wall_seconds=time.monotonic() - began)

    def _run(
        self,
        place: Place,
        client: Client,
        progress: bool | None,
    ) -> None:
        from dasktune.report.progress import display
        from dasktune.runner import DaskRunner

        engine = Engine(self._graph(), objective=self.objective, trials=self._records)
        recorder = Recorder(
            self.database,
            self._row.id,
            engine.dispatcher.plan.root_key_of,
            self._history.next_number,
            self._history.remember,
        )

        def begin(now: float, capacity: int) -> Outcome:
            tuner, number, records = place.tuner, place.number, place.records
            if records:
                return engine.resume(
                    tuner, place=number, records=records, now=now, widen=place.widen
                )
            return engine.begin(tuner, place=number, capacity=capacity, now=now)

        run = f"{self.name}-{uuid4().hex[:8]}"
        show = display(self, engine) if _wants_display(progress) else nullcontext()
        with show as on_turn:
            self._runner = DaskRunner(client, engine, self._plan(run), recorder, on_turn=on_turn)
            if self._is_stopping:
                self._runner.request_stop()
            try:
                self._runner.run(begin)
            finally:
                self._runner = None

    def _plan(self, run: str) -> JobPlan:
        return JobPlan(
            run=run,
            code=pack(self.trainer),
            config=self.config,
            seed=self.seed,
            store=_seen_by_workers(self.store.url),
            report_every=self.report_every,
            needs=self._options.needs,
            needs_process=getattr(self.trainer, "requires_process", False),
            saves_by_time=self._options.saves.every is None,
        )

    def _client(self, client: Client | None, workers: int | None) -> Any:
        from dasktune.cluster import local_client, own_client

        return local_client(workers) if client is None else own_client(client)

    def _graph(self) -> Dispatcher:
        """Return the dispatcher with all trials registered, made when first needed."""
        if self._dispatcher is None:
            recall = Recall.open(self.database, self.store, self._row.root)
            options = self._options.with_prefix(uuid4().hex[:16])

            def fill(node: Node) -> None:
                recall.read(dispatcher.plan.root_key_of(node))
                recall.fill(node)

            dispatcher = Dispatcher(
                self._row.root, options, on_new=fill, seeded_key=self._seeded_key
            )
            for trial in self._records.values():
                dispatcher.register(trial.number, trial.sequences, trial.max_steps, seed=trial.seed)
            self._dispatcher = dispatcher
        return self._dispatcher

    def _seeded_key(self, added: int) -> str:
        """Return the state key before any step for another training seed."""
        return root_key(f"{self._row.spec['fingerprint']}", self.seed + added)

    def _check_resumable(self, allow_failed_check: bool) -> None:
        """Refuse to merge what is known not to resume exactly; warn if nothing is known."""
        if not self._options.merge:
            return
        checks = self._history.notes("check")
        mine = [one for one in checks if one["fingerprint"] == self._row.spec["fingerprint"]]
        if not mine and not self._warned:
            self._warned = True
            logger.warning(
                "%s has not been checked: 'dasktune check' shows whether it resumes exactly, "
                "which merging rests on",
                self.trainer.__qualname__,
            )
        elif mine and not mine[-1]["ok"] and not allow_failed_check:
            raise ConfigurationError(
                f"{self.trainer.__qualname__} must resume exactly for its trials to be merged; "
                f"'dasktune check' found: {mine[-1]['text']}. Mend it, or use merge=False, or "
                "allow_failed_check=True"
            )

    # ----------------------------------------------------------------------- results

    @property
    def trials(self) -> list[Trial]:
        """All trials, by number."""
        plan = self._graph().plan
        return [trial_of(plan, record) for record in self._records.values()]

    @property
    def best_trial(self) -> Trial:
        """The trial with the best finite value of those that did not fail.

        Raises
        ------
        ConfigurationError
            If there is none yet.
        """
        best = self._best_record()
        if best is None:
            raise ConfigurationError(f"study {self.name!r} has no trial with a finite value yet")
        return trial_of(self._graph().plan, best)

    @property
    def best_trials(self) -> list[Trial]:
        """The best trial in a list, as Optuna has it; empty if there is none."""
        return [] if self._best_record() is None else [self.best_trial]

    @property
    def best_value(self) -> float:
        """The value of the best trial."""
        value = self.best_trial.value
        return math.nan if value is None else value

    @property
    def best_params(self) -> Mapping[str, object]:
        """What was sampled for the best trial."""
        return self.best_trial.params

    @property
    def user_attrs(self) -> dict[str, object]:
        """What users attached to the study."""
        return {note["name"]: note["value"] for note in self._history.notes("user_attr")}

    def set_user_attr(self, name: str, value: object) -> None:
        """Attach a JSON value to the study under a name."""
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise ConfigurationError(
                f"user attribute {name!r} must be a JSON value, got {value!r}"
            ) from None
        self._history.note("user_attr", name=name, value=value)

    def record_check(self, ok: bool, text: str) -> None:
        """Keep what `check_resume` found about this trainer."""
        fingerprint = self._row.spec["fingerprint"]
        self._history.note("check", fingerprint=fingerprint, ok=ok, text=text)

    def stages(self) -> list[StageRow]:
        """Return every attempt that ran for this study, in order of start."""
        return sorted(self.database.stages(self._row.id), key=lambda row: row.started)

    def summary(self) -> Summary:
        """Return what was asked for, what was trained, and what that cost."""
        runs = [note["wall_seconds"] for note in self._history.notes("run")]
        best = self._best_record()
        stages = self.stages()
        spans = ((one.started, one.ended) for one in stages)
        return summarise(
            self._graph().plan,
            self._records,
            steps_executed=sum(stage.steps for stage in stages),
            steps_repeated=sum(stage.repeated for stage in stages),
            wall_seconds=sum(runs),
            worker_seconds=sum(ended - started for started, ended in spans if started and ended),
            best_value=None if best is None else best.value,
        )

    def trials_dataframe(self) -> pandas.DataFrame:
        """Return one row a trial: number, state, steps, value, and each hyper-parameter.

        A hyper-parameter that has the name of one of these gets the column
        ``params_<name>``, as Optuna calls it.

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
        columns, rows = table_of(self._records.values())
        return pandas.DataFrame(rows, columns=columns)

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write a self-contained HTML page about the study; return where it is.

        Parameters
        ----------
        path
            Where to; ``report.html`` in a local storage, else here, if None.
        """
        from dasktune.report.page import write_report

        return write_report(self, Path(path) if path is not None else self._report_path())

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    @property
    def plan(self) -> Any:
        """The search plan of all trials, for reports."""
        return self._graph().plan

    def _report_path(self) -> Path:
        folder = Path(self.store.url.removeprefix("file://"))
        return (folder if folder.is_dir() else Path()) / f"report-{layout.slug(self.name)}.html"

    def _best_record(self) -> TrialRecord | None:
        return best_of(self._records.values(), self.direction)

    def _catch_up(self) -> None:
        """Read what has been decided since the log was read, and forget what was not written.

        Another process may have run the study, and a run of this one may have broken off.
        """
        if self._history.read_on() or not self._is_current:
            self._records = self._history.trials()
            self._dispatcher, self._is_current = None, True


def _run_problems(tuner: object, client: object, workers: object) -> list[str]:
    """Return what is wrong with the arguments of `Study.optimize`."""
    found = []
    if not isinstance(tuner, Tuner):
        found.append(f"tuner must be one of dasktune.algos, got {tuner!r}")
    if client is not None and not hasattr(client, "submit"):
        found.append(f"client must be a dask.distributed.Client, got {client!r}")
    if workers is not None and (type(workers) is not int or workers < 1):
        found.append(f"workers must be an int >= 1, got {workers!r}")
    return found


def _wants_display(progress: bool | None) -> bool:
    return sys.stderr.isatty() if progress is None else progress


def _seen_by_workers(url: str) -> str:
    """Return a store's URL as workers need it: they run in folders of their own."""
    return url if "://" in url else str(Path(url).absolute())
