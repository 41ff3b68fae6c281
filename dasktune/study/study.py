"""Studies: what users create, run and look at."""

from __future__ import annotations

import copy
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dasktune.algos.base import Tuner, known_configurations
from dasktune.algos.fixed import SingleTrial
from dasktune.driver.history import Place
from dasktune.driver.interrupt import interruptible
from dasktune.driver.recorder import Recorder
from dasktune.driver.retention.evict import Evictor
from dasktune.engine.engine import Engine, refuse_objectives
from dasktune.engine.event_log import Record, Replay, replay
from dasktune.engine.limits import Limits, Meter, Used
from dasktune.engine.outcome import Outcome
from dasktune.engine.timeouts import Timeouts
from dasktune.errors import ConfigurationError, StorageError, TrainerError, refuse
from dasktune.graph.plan import Node, SearchPlan
from dasktune.graph.tree import StageTree, build_stage_tree
from dasktune.results.keep import kept_elsewhere
from dasktune.results.summary import savings_line
from dasktune.storage import layout
from dasktune.storage.checkpoints import CheckpointStore, Commit
from dasktune.storage.database.database import Database
from dasktune.storage.database.schema import StudyRow
from dasktune.study.additions import StudyAdditions
from dasktune.study.ask_tell import Asked, OwnLoop
from dasktune.study.callbacks import Announcer, Callback, Mirroring
from dasktune.study.config import StudyConfig
from dasktune.study.export import about_state, check_target, write_state
from dasktune.study.trial_state import Training, TrialStates, chosen_step
from dasktune.trainer.code import pack
from dasktune.trainer.stages import StageTraining
from dasktune.types import Metrics, Step, TrialState
from dasktune.worker.gpus import gpus_needed
from dasktune.worker.job import PROCESS, JobPlan

if TYPE_CHECKING:
    from distributed import Client

    from dasktune.driver.runner import DaskRunner

logger = logging.getLogger(__name__)

GOES_ON = "once that is mended, the same call or command goes on where it was"
"""What to do about a store or database that fails a run."""


class Study(StudyAdditions):
    """A study: its trials, and the ways to add to them. Made by `create_study`.

    Attributes
    ----------
    name, metric, direction, seed
        As it was created.
    user_attrs
        What users attached with `set_user_attr`.
    limit
        Which limit ended the last `optimize`, in words; None if none did.
    """

    def __init__(
        self, config: StudyConfig, *, row: StudyRow, database: Database, store: CheckpointStore
    ) -> None:
        super().__init__(row, database, store, config.options)
        self.study_config = config
        self.config: Mapping[str, object] = dict(config.config or {})
        self.report_every = config.report_every
        self._trainer = config.trainer
        self._owner = f"{row.root}:{row.created}"
        self._mirroring = Mirroring(self, config.mirror, owner=self._owner)
        self._runner: DaskRunner | None = None
        self._loop: OwnLoop | None = None
        self._asking = threading.Lock()
        self.limit: str | None = None
        """Which limit ended the last `optimize`, in words; None if none did."""
        self.ending = ""
        """Why the last tuner has ended, as it says: empty if all its trials are at their ends."""
        self._is_stopping: bool | None = None  # None while nothing runs
        self._warned = False

    @property
    def trainer(self) -> type:
        """The class that trains.

        Raises
        ------
        ConfigurationError
            If the study was created without one.
        """
        if self._trainer is None:
            raise ConfigurationError(
                f"study {self.name!r} must have a trainer for this, got None; without one it "
                "is used with ask and tell"
            )
        return self._trainer

    # ---------------------------------------------------------------------- running

    def optimize(
        self,
        tuner: Tuner,
        *,
        client: Client | None = None,
        workers: int | None = None,
        gpus_per_worker: float | None = None,
        limits: Limits | None = None,
        callbacks: Iterable[Callback] = (),
        progress: bool | None = None,
        last_line: bool = True,
        allow_failed_check: bool = False,
        timeouts: Timeouts | None = None,
    ) -> None:
        """Run a tuner until it has ended; a known one goes on where it was.

        Parameters
        ----------
        tuner
            What to run. One whose identity (class and arguments) the study has seen is
            continued, and returns at once if it had ended; one that is the same but for
            more trials goes on with the further ones.
        client
            Connected to the Dask cluster to run on; None starts a local one.
        workers
            Size of the local cluster; if None one worker per core, or as many as the GPUs
            allow.
        gpus_per_worker
            GPUs of each local worker, or its share of one such as 0.5; what stages need
            (`create_study`) if None.
        limits
            End earlier: at a target, or when so much has been used. What runs is saved.
        callbacks
            Told of reports, of trials that end, and of the end of the run.
        progress
            Show a live display; None shows it on a terminal.
        last_line
            Say on standard error, at the end, what merging saved.
        allow_failed_check
            Merge trials although `dasktune check` found that this trainer does not resume
            exactly.
        timeouts
            How long workers, their steps, the scheduler and the database may say nothing;
            those of `dasktune.Timeouts` if None.

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
        callbacks, _ = tuple(callbacks), self.trainer
        refuse(_run_problems(tuner, client, workers, limits, callbacks, timeouts))
        timeouts = timeouts or Timeouts()
        refuse_objectives(tuner, self.objective)
        # Tuners have a state: the caller's stays as it is, and can be used again.
        tuner = copy.deepcopy(tuner)
        announcer = Announcer(self, callbacks, self._mirroring)
        with self._alone():
            self._catch_up()
            self._look_again()
            place, self.limit = self._history.place_of(tuner), None
            self.ending = place.ending
            if place.has_ended:
                logger.info("study %s: this tuner has ended already", self.name)
                return
            limits, run = limits or Limits(), f"{self.name}-{uuid4().hex[:8]}"
            save = partial(self._note_run, run, place.number)
            meter = Meter(limits, self.objective, self._used(place, limits), save)
            if meter.reached() is None:
                self._check_resumable(allow_failed_check)
                place = self._take_over(tuner, place, run)
                gpus = self._gpus_of_workers(client, gpus_per_worker)
                try:
                    with (
                        self._mirroring,
                        self._timed(meter, save),
                        interruptible(self.stop),
                        self._client(client, workers, gpus) as connected,
                    ):
                        self._is_current = False  # until all that is decided has been written
                        self._run(run, place, connected, progress, meter, announcer, timeouts)
                        self._is_current = True
                finally:
                    announcer.end()
            place = self._history.place_of(tuner)
            self.limit = None if place.has_ended else meter.reached()
            self.ending = place.ending
        if last_line:
            self._say_last(tuner)

    def _take_over(self, tuner: Tuner, place: Place, run: str) -> Place:
        """Begin a run: an earlier driver that goes on elsewhere can write nothing from now on."""
        while not self._history.begin(run, place.number):
            self._catch_up()
            place = self._history.place_of(tuner)
        return place

    def _say_last(self, tuner: Tuner) -> None:
        if self._history.place_of(tuner).has_ended:
            said = f"{self.ending}; " if self.ending else ""
            sys.stderr.write(f"{self.name}: {said}{savings_line(self.summary())}\n")
        elif self.limit is not None:
            sys.stderr.write(
                f"{self.name}: ended by its limits, {self.limit}; {savings_line(self.summary())}\n"
            )

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
        trial = next((one for one in self.trials if self.records[one.number].tuner == place), None)
        if trial is not None and trial.error is not None:
            raise TrainerError(self.records[trial.number].message, trial.error)
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
        if any(one.seed for one in configurations):
            raise ConfigurationError("stage_tree needs trials of one seed, got those of Repeats")
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
    def _timed(self, meter: Meter, save: Callable[[Used], None]) -> Iterator[None]:
        """Let the study be stopped meanwhile, and take note of what it uses."""
        self._is_stopping = False
        try:
            yield
        except BaseException as error:
            with suppress(StorageError):  # what went wrong first is what is told
                save(meter.of_this_run)
            if isinstance(error, StorageError):
                error.add_note(GOES_ON)
            raise
        else:
            save(meter.of_this_run)
        finally:
            self._is_stopping = None

    def _note_run(self, run: str, place: int, used: Used) -> None:
        self._history.note(
            "run",
            run=run,
            place=place,
            wall_seconds=used.seconds,
            worker_seconds=used.worker_seconds,
            steps=used.steps,
        )

    def _used(self, place: Place, limits: Limits) -> Used:
        """Return what a tuner's earlier runs have used."""
        notes = [one for one in self._runs() if one["place"] == place.number]
        best = math.inf
        if limits.target is not None:
            mine = [one for one in self.records.values() if one.tuner == place.number]
            known = (metrics for _, by_step in self.seen(mine) for metrics in by_step.values())
            names = set(self.objective.metrics)
            losses = (self.objective.losses(one)[0] for one in known if names <= one.keys())
            best = min(losses, default=math.inf)
        return Used(
            seconds=sum(note["wall_seconds"] for note in notes),
            worker_seconds=sum(note["worker_seconds"] for note in notes),
            steps=sum(note["steps"] for note in notes),
            best_loss=best,
        )

    def _run(
        self,
        run: str,
        place: Place,
        client: Client,
        progress: bool | None,
        meter: Meter,
        announcer: Announcer,
        timeouts: Timeouts,
    ) -> None:
        from dasktune.driver.heartbeat import Signs
        from dasktune.driver.runner import DaskRunner
        from dasktune.report.progress import display

        self.database.connections.patience = timeouts.database_seconds
        engine, recorder = self._engine(), self._recorder(run)
        show = display(self, engine) if _wants_display(progress) else nullcontext()
        signing = Signs(
            self.database,
            study_id=self._row.id,
            study=self.name,
            run=run,
            engine=engine,
            recorder=recorder,
            client=client,
            ending=partial(self._ending, place, meter),
        )
        with show as on_turn, signing as signs:
            self._runner = DaskRunner(
                client,
                engine,
                self._plan(run, timeouts),
                recorder,
                study=self._owner if self._options.merge else None,
                evictor=self._evictor(engine, recorder),
                meter=meter,
                timeouts=timeouts,
                on_turn=on_turn,
                on_safe=announcer.take,
                signs=signs,
            )
            if self._is_stopping:
                self._runner.request_stop()
            try:
                self._runner.run(partial(self._begin, engine, place))
            finally:
                self._runner = None

    def _ending(self, place: Place, meter: Meter) -> tuple[str, str]:
        """Return how a run came to its end that no exception has ended, and what limit it was."""
        now = self._history.place_of(place.tuner)
        if now.has_ended:
            return "ended", now.ending
        limit = meter.reached()
        return ("interrupted", "") if limit is None else ("limit", limit)

    def _evictor(self, engine: Engine, recorder: Recorder) -> Evictor | None:
        """Return the part that keeps the store under its budget; None if it has none."""
        retention = self.study_config.retention
        if retention is None:
            return None
        return Evictor(
            self.store,
            self.database,
            retention,
            view=engine.view,
            trials=engine.trials,
            objective=self.objective,
            kept_elsewhere=partial(kept_elsewhere, self.database, self._row.id),
            write_down=recorder.flush,
        )

    def _engine(self) -> Engine:
        return Engine(
            self._graph(),
            objective=self.objective,
            trials=self.records,
            fails_on_nan=self.study_config.on_nan == "fail",
        )

    def _begin(self, engine: Engine, place: Place, now: float, capacity: int) -> Outcome:
        """Start a tuner, or go on with it."""
        tuner, number, records = place.tuner, place.number, place.records
        if records:
            return engine.resume(tuner, place=number, records=records, now=now, widen=place.widen)
        inputs = self._inputs(tuner)
        return engine.begin(tuner, place=number, capacity=capacity, now=now, inputs=inputs)

    def _inputs(self, tuner: Tuner) -> dict[str, object]:
        """Return what a new tuner is given to begin with."""
        found: dict[str, object] = {"objectives": len(self.objective.metrics)}
        queued = self.queued[: tuner.most_queued]
        if queued:
            found["queued"] = queued
        if tuner.learns:
            found["earlier"] = [
                {"point": dict(one.point or one.params), "step": one.steps, "losses": losses}
                for one in self.records.values()
                if one.values is not None and one.state is not TrialState.FAIL
                for losses in [list(self.objective.losses(one.metrics(self.objective)))]
            ]
        return found

    def plan_of_run(self, run: str) -> JobPlan:
        """Return what workers are told at the beginning of a run of that name."""
        return self._plan(run, Timeouts())

    def _plan(self, run: str, timeouts: Timeouts) -> JobPlan:
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
            step_seconds=timeouts.step_seconds,
            driver=PROCESS,
        )

    def _client(self, client: Client | None, workers: int | None, gpus: float) -> Any:
        from dasktune.cluster.local import local_client
        from dasktune.cluster.workers import own_client

        if client is not None:
            return own_client(client)
        return local_client(workers, gpus_per_worker=gpus)

    def _gpus_of_workers(self, client: Client | None, gpus_per_worker: float | None) -> float:
        """Return how many GPUs each local worker gets, before anything has been started."""
        if client is None:
            return gpus_needed(self._options.needs, gpus_per_worker)
        if gpus_per_worker is not None:
            raise ConfigurationError(
                "gpus_per_worker is for a local cluster, not for the one of client"
            )
        return 0

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

    # --------------------------------------------------------------- a loop of one's own

    def ask(self, tuner: Tuner | None = None) -> Asked | None:
        """Return what to train next in a loop of the user's own; None if there is nothing now.

        The study must have been created without a trainer. What was asked for and not told
        is asked for again after a restart.

        Parameters
        ----------
        tuner
            Decides; may be left out after the first call.

        Examples
        --------
        >>> import dasktune as dt
        >>> study = dt.create_study(None, name="own", storage="memory://own", metric="loss")
        >>> tuner = dt.algos.Random(dt.Space(x=dt.Float(-1, 1)), trials=3, max_steps=1)
        >>> while asked := study.ask(tuner):
        ...     study.tell(asked, asked.params["x"] ** 2)
        >>> len(study.trials)
        3
        """
        with self._asking:
            return self._own_loop(tuner).ask()

    def tell(
        self,
        trial: Asked | int,
        values: float | Iterable[float] | Mapping[str, float] | None = None,
        *,
        state: TrialState | None = None,
    ) -> None:
        """Say what came of what `ask` returned.

        Parameters
        ----------
        trial
            What was asked for, or its number.
        values
            The metric, or one for each objective, or metrics by name, after `Asked.until`
            steps.
        state
            `TrialState.FAIL` says that it failed, with no values.
        """
        with self._asking:
            self._own_loop(None).tell(trial, values, state)

    def _own_loop(self, tuner: Tuner | None) -> OwnLoop:
        if self._trainer is not None:
            raise ConfigurationError(
                f"study {self.name!r} trains with {self._trainer.__qualname__}; ask and tell "
                "are for studies without a trainer: create_study(None, ...)"
            )
        if self._loop is None or (tuner is not None and not self._loop.is_for(tuner)):
            if tuner is None:
                raise ConfigurationError("ask must be given a tuner first, got None")
            self._loop = self._open_loop(tuner)
        return self._loop

    def _open_loop(self, tuner: Tuner) -> OwnLoop:
        refuse(_run_problems(tuner, None, None, None, (), None))
        self._catch_up()
        place = self._history.place_of(copy.deepcopy(tuner))
        engine = self._engine()
        engine.dismiss()  # what another tuner's loop still waits for
        self._mirroring.open()
        begin = partial(self._begin, engine, place)
        take = self._mirroring.take
        return OwnLoop(engine, self._recorder(), tuner.identity(), self.seed, begin, take)

    def close(self) -> None:
        """Close the database, and the mirror."""
        self._mirroring.close()
        super().close()

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write a self-contained HTML page about the study; return where it is.

        Parameters
        ----------
        path
            Where to; ``report.html`` in a local storage, else here, if None.
        """
        from dasktune.report.page import write_report

        return write_report(self, Path(path) if path is not None else self._report_path())

    def _report_path(self) -> Path:
        folder = Path(self.store.url.removeprefix("file://"))
        return (folder if folder.is_dir() else Path()) / f"report-{layout.slug(self.name)}.html"

    def trial_state(self, number: int, step: Step | None = None) -> Any:
        """Return the state of a trial: what the trainer's ``state_dict`` gave, copied.

        One that is not stored (any more) is trained again, in this process and on the CPU,
        from the nearest one that is, and is stored then, if the study merges.

        Parameters
        ----------
        number
            Which trial.
        step
            After how many of its steps; all of them if None.

        Raises
        ------
        ConfigurationError
            If there is no such trial, or it was not trained as far.
        TrainerError
            If it had to be trained again, and failed.
        """
        training = Training(trainer=self.trainer, config=self.config, seed=self.seed)
        keep = self._keep_state if self._options.merge else None
        states = TrialStates(self.store, self.plan, training, keep)
        return states.at(number, chosen_step(self.records, number, step))

    def _keep_state(self, node: Node, commit: Commit) -> None:
        recorder = self._recorder()
        recorder.checkpoint(node, commit)
        recorder.flush()

    def export(
        self,
        number: int | None = None,
        path: str | os.PathLike[str] = "model.pt",
        *,
        step: Step | None = None,
        only: str | None = None,
    ) -> Path:
        """Write the state of a trial (`trial_state`) to a plain file; return where it is.

        Parameters
        ----------
        number
            Which trial; the best one if None.
        path
            Where to. ``.pt`` and ``.pth`` are for ``torch.load``, ``.npz`` for
            ``numpy.load``.
        step
            After how many of its steps; all of them if None.
        only
            Write just this part of the state: an attribute of a `dasktune.TorchTrainer`, or
            an entry of another trainer's state.

        Raises
        ------
        ConfigurationError
            If there is no such trial, step or part, or the path has another ending.
        StorageError
            If the file cannot be written.
        """
        target = Path(path)
        check_target(target)
        number = self.best_trial.number if number is None else number
        step = chosen_step(self.records, number, step)
        state = self.trial_state(number, step)
        about = {**about_state(self, number, step), "fingerprint": self._row.spec["fingerprint"]}
        return write_state(target, state, about, only)

    def replay(self, tuner: Tuner) -> Replay:
        """Derive every decision of a tuner's runs again from what it was told; compare.

        Raises
        ------
        ConfigurationError
            If the study has not run this tuner.
        """
        place = self._known_place(tuner)
        return replay(place.tuner, self._history.records_of(place.number), self.objective)

    def log(self, tuner: Tuner) -> list[Record]:
        """Return every call of a tuner, in order: its cause, and the decisions it gave.

        Raises
        ------
        ConfigurationError
            If the study has not run this tuner.
        """
        return list(self._history.records_of(self._known_place(tuner).number))

    def _known_place(self, tuner: Tuner) -> Place:
        self._catch_up()
        place = self._history.place_of(copy.deepcopy(tuner))
        if not place.records:
            raise ConfigurationError(f"study {self.name!r} has not run this tuner yet")
        return place


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


def _run_problems(
    tuner: object,
    client: object,
    workers: object,
    limits: object,
    callbacks: tuple[object, ...],
    timeouts: object,
) -> list[str]:
    """Return what is wrong with the arguments of `Study.optimize`."""
    found = []
    if not isinstance(tuner, Tuner):
        found.append(f"tuner must be one of dasktune.algos, got {tuner!r}")
    if client is not None and not hasattr(client, "submit"):
        found.append(f"client must be a dask.distributed.Client, got {client!r}")
    if workers is not None and (type(workers) is not int or workers < 1):
        found.append(f"workers must be an int >= 1, got {workers!r}")
    if limits is not None and not isinstance(limits, Limits):
        found.append(f"limits must be dasktune.Limits, got {limits!r}")
    if timeouts is not None and not isinstance(timeouts, Timeouts):
        found.append(f"timeouts must be dasktune.Timeouts, got {timeouts!r}")
    found += [
        f"a callback must be a dasktune.Callback, got {one!r}"
        for one in callbacks
        if not isinstance(one, Callback)
    ]
    return found


def _wants_display(progress: bool | None) -> bool:
    return sys.stderr.isatty() if progress is None else progress


def _seen_by_workers(url: str) -> str:
    """Return a store's URL as workers need it: they run in folders of their own."""
    return url if "://" in url else str(Path(url).expanduser().absolute())
