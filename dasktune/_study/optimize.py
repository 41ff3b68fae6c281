"""Running tuners in a study: `Study.optimize`, and what it has in common with ask and tell."""

from __future__ import annotations

import asyncio
import copy
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, assert_never
from uuid import uuid4

from dasktune._cluster import fork_server
from dasktune._driver.audit_notes import AuditDifferenceError, AuditFailure, figures_of
from dasktune._driver.history import TunerPlace
from dasktune._driver.interrupt import interruptible
from dasktune._driver.numerics import rule_of
from dasktune._driver.refused_resumes import (
    AloneRule,
    ResumeRefusedError,
    alone_rule,
    note_refused,
    refused_of,
)
from dasktune._driver.retry_notes import note_retried, trials_to_retry
from dasktune._driver.run import (
    AuditTerms,
    StudyRun,
    begin_tuner,
    cluster_of,
    device_of_run,
    gpus_per_local_worker,
    inputs_of,
    seen_by_workers,
)
from dasktune._driver.speed_keeper import SpeedKeeper
from dasktune._driver.transfer import TRANSFERS, given_trials
from dasktune._engine.engine import Engine, refuse_objectives
from dasktune._engine.limits import Limits, Meter, Used
from dasktune._engine.outcome import Outcome
from dasktune._engine.timeouts import INTERRUPT_LOOK_SECONDS, STOP_AGAIN_SECONDS, Timeouts
from dasktune._engine.trials import TrialRecord
from dasktune._results.keep import kept_elsewhere
from dasktune._results.results import StudyResults
from dasktune._results.rules import refuse_other_rule
from dasktune._results.summary import savings_line
from dasktune._results.withdrawn import RETRAIN, merged_results
from dasktune._study.additions import queued_points
from dasktune._study.ask_tell import Opened
from dasktune._study.callbacks import Announcer, Callback, LoggerFeeds
from dasktune._study.changed_code import OpenCode
from dasktune._study.config import StudyConfig
from dasktune._study.first_check import KnownTrials, TrainerChecks, known_trials
from dasktune._study.from_optuna import OF_OPTIMIZE, explained, tuner_problem
from dasktune._study.main_guard import guard_problem
from dasktune._study.memory import StudyMemory
from dasktune._words import counted, listed
from dasktune._worker.job import JobPlan, this_process
from dasktune.algos.base import Tuner
from dasktune.algos.fixed import SingleTrial
from dasktune.algos.forest.ranks import lines_of
from dasktune.algos.sampled import SampledTuner
from dasktune.algos.stopping import beyond_bounds
from dasktune.errors import ConfigurationError, StorageError, TrainerError, refuse, unknown
from dasktune.graph.audits import audit_problems
from dasktune.graph.kept_speeds import NOTHING_KEPT, KeptMeasurements
from dasktune.space import contradictions
from dasktune.storage.database.schema import StageRow
from dasktune.storage.retention import Keep
from dasktune.trainer.base import change_problems_of, harmless_of, name_problems_of
from dasktune.trainer.check_switch import checks_are_on
from dasktune.trainer.code import pack
from dasktune.trainer.fingerprint.read_files import code_folder
from dasktune.trainer.metrics import metric_names
from dasktune.types import Metrics, Step, TrialState

if TYPE_CHECKING:
    from distributed import Client

    from dasktune._driver.runner import DaskRunner
    from dasktune.report.progress import RunDisplay

logger = logging.getLogger(__name__)

Again = Literal["retry", "retrain"]
"""A way to train trials again: failed ones go on, withdrawn ones begin anew and alone."""

_AGAIN: tuple[Again, ...] = ("retry", "retrain")

GOES_ON = "once that is mended, the same call or command goes on where it was"
"""Advice for a store or database that fails a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beginning:
    """A run that begins: its name, its tuner's place, what it may use, and what it knows."""

    run: str
    place: TunerPlace
    meter: Meter
    keeper: SpeedKeeper
    kept: KeptMeasurements = NOTHING_KEPT


class Optimizer:
    """Runs tuners in a study, one at a time.

    Parameters
    ----------
    study
        The `dasktune.Study` that callbacks get.
    config, memory, results
        Its configuration, the memory that runs change, and its reader.
    feeds
        Get all outcomes.

    Attributes
    ----------
    limit, ending, had_ended
        As for `dasktune.Study`.
    runner
        Carries out the run; None while nothing runs.
    code
        Knows whether the study's code is still that with which it was opened.
    """

    def __init__(
        self,
        study: Any,
        config: StudyConfig,
        memory: StudyMemory,
        results: StudyResults,
        feeds: LoggerFeeds,
    ) -> None:
        self._study = study
        self._name = config.name
        self._config = config
        self._memory = memory
        self._results = results
        self._feeds = feeds
        self._owner = f"{results.row.root}:{results.row.created}"
        self._proves = True
        self._is_stopping: bool | None = None  # None while nothing runs
        self._checks = TrainerChecks(results, config, lambda: bool(self._is_stopping))
        self._again: dict[Again, list[int]] = {}
        self._transfer: str | None = None
        self.code = OpenCode(config, results.row.spec)
        self._warned_of: frozenset[str] = frozenset()
        self.limit: str | None = None
        self.ending = ""
        self.had_ended = False
        self.runner: DaskRunner | None = None

    @explained(OF_OPTIMIZE, "study.optimize(dasktune.algos.ASHA(space, ...))")
    def optimize(
        self,
        tuner: Tuner,
        *,
        client: Client | None = None,
        workers: int | None = None,
        gpus_per_worker: float | None = None,
        trials_per_gpu: int = 1,
        limits: Limits | None = None,
        callbacks: Iterable[Callback] = (),
        progress: bool | None = None,
        last_line: bool = True,
        check: bool = True,
        allow_failed_check: bool = False,
        audit: float | None = None,
        timeouts: Timeouts | None = None,
        transfer: str | None = None,
    ) -> None:
        """Run a tuner until it has ended; a known one goes on where it was.

        Parameters
        ----------
        tuner
            Decides what is trained: one of `dasktune.algos`, or one of your own. The study
            continues a tuner whose identity (class and arguments) it knows. If that tuner has
            ended, this returns at once, and says so; with more trials than before, it trains the
            new ones.
        client
            Connected to the Dask cluster to run on; None starts a local one.
        workers
            Size of the local cluster; if None, a worker per core, or as many as the GPUs
            allow.
        gpus_per_worker
            GPUs of each local worker, or its share of a GPU such as 0.5; if None, what stages
            need (`create_study`).
        trials_per_gpu
            Most trials that may train on one GPU of the local cluster at a time, each in a worker
            of its own. How many do is measured for each model, beginning with one; see
            docs/clusters.md. More than 1 needs ``gpus_per_worker=1``, which it implies.
        limits
            End earlier: at a target, or after so much time or so many steps. Running stages are
            saved.
        callbacks
            Called with reports, with trials that end, and at the end of the run.
        progress
            Show a live display; None shows it on a terminal and in a notebook. Elsewhere, one line
            says that the trainer is checked, if it is.
        last_line
            Print the savings by merging to standard error, at the end.
        check
            Whether to check that this trainer resumes exactly, unless that is known from an
            earlier check. The check runs while the workers start, for 30 seconds or 1% of the
            steps at most; the live display says how far it is. A recorded failure counts in any
            case.
        allow_failed_check
            Merge trials although a check or an audit found that this trainer does not resume
            exactly; there are no audits then.
        audit
            As for `dasktune.create_study`, for this run; None takes that of the study.
        timeouts
            How long workers, their steps, the scheduler and the database may be silent;
            the defaults of `dasktune.Timeouts` if None.
        transfer
            ``"database"`` gives a sampler that learns the finished trials of other studies in the
            same database: of the same trainer, metric, direction and space. They are inputs in
            the event log, so a replay needs no other study. None is for the trials of this study
            only. A tuner that goes on keeps what it began with.

        Raises
        ------
        ConfigurationError
            If arguments are invalid, the study is running already, or the trainer does not
            resume exactly.
        ClusterError
            If the workers cannot run it.
        StorageError
            If states or records cannot be stored, or another process runs the study; all
            reports so far are safe.
        KeyboardInterrupt
            After ctrl-C or SIGTERM, once running stages are saved; at the second signal, at
            once.
        """
        if not isinstance(callbacks, Iterable):
            raise ConfigurationError(
                f"callbacks must be a list of dasktune.Callback, got {callbacks!r}"
            )
        callbacks, _ = tuple(callbacks), self._config.known_trainer
        audit = self._config.audit if audit is None else audit
        refuse(
            [
                *_run_problems(tuner, client, workers, limits, callbacks, timeouts),
                *audit_problems(audit),
                *_transfer_problems(transfer),
            ]
        )
        refuse_objectives(tuner, self._results.objective)
        if tuner.searched_space is not None:
            refuse(contradictions(tuner.searched_space, self._results.options.needs))
        results, timeouts = self._results, timeouts or Timeouts()
        if not check or not checks_are_on() or allow_failed_check:
            audit = 0.0
        self._transfer = transfer
        announcer = Announcer(self._study, callbacks, self._feeds)
        with self._memory.alone():
            self._memory.catch_up()
            self._memory.look_again(timeouts.waits.listing_seconds)
            place, self.limit = self._with_again(self._place_of(tuner)), None
            self.ending, self.had_ended = place.ending, place.has_ended
            is_new = not place.records
            if is_new:
                refuse(self._known_problems(tuner))
                for sentence in tuner.advice:
                    logger.warning("study %s: %s", self._name, sentence)
            self._warn_of_queue(tuner, goes_on=not is_new)
            self._refuse_changed_code()
            if place.has_ended:
                logger.info("study %s: this tuner has ended already", self._name)
                self._repeat_differences()
                if last_line:
                    sys.stderr.write(f"{self._name}: {_nothing_left(results)}\n")
                return
            limits = limits or Limits()
            first = self._beginning(place, limits, timeouts)
            meter = first.meter
            if meter.reached() is None:
                refuse_other_rule(results.row)
                gpus = gpus_per_local_worker(
                    client, gpus_per_worker, trials_per_gpu, results.options.needs
                )
                self._checks.device = device_of_run(client, gpus, results.options.needs)
                self._proves = not allow_failed_check
                alone = self._alone_rule(allow_failed_check)
                is_unchecked = not alone.is_all and self._checks.refuse_failed(allow_failed_check)
                first = self._take_over(tuner, first)
                place = self._with_again(first.place)
                self._again = {}
                if client is None:
                    if problem := guard_problem():
                        raise ConfigurationError(problem)
                    if not gpus:
                        fork_server.start()
                is_checked = is_unchecked and check and checks_are_on()
                known = self._known_trials(place.tuner, limits) if is_checked else None
                try:
                    with (
                        self._displayed(progress, is_checked=is_checked) as display,
                        self._feeds,
                        self._stoppable(meter),
                        interruptible(self.stop, lambda: self._interrupted_line(meter)),
                        self._checks.running(known, timeouts.step_seconds),
                        cluster_of(client, workers, gpus, trials_per_gpu) as connected,
                    ):
                        wait = partial(
                            self._finish_check,
                            allow_failed_check,
                            is_audited=audit > 0,
                            show=_nothing if display is None else display.say,
                        )
                        train = partial(
                            self._run,
                            client=connected,
                            display=display,
                            announcer=announcer,
                            timeouts=timeouts,
                        )
                        begin = partial(self._begin_anew, tuner, limits, timeouts)
                        first = replace(first, place=place)
                        train = partial(train, share=audit)
                        meter = self._train(first, alone, partial(train, wait=wait), train, begin)
                finally:
                    announcer.end()
            place = self._place_of(tuner)
            self.limit = None if place.has_ended else meter.reached()
            self.ending = place.ending
        if is_new and place.has_ended and not meter.of_this_run.steps:
            self._warn_of_seed(tuner)
        if last_line and (place.has_ended or self.limit is not None):
            by = "" if meter.stopped_by else "ended by its limits, "
            reason = self.ending if place.has_ended else f"{by}{self.limit}"
            prefix = f"{reason}; " if reason else ""
            line = savings_line(results.summary())
            sys.stderr.write(f"{self._name}: {prefix}{line}\n")
            for each in results.transfers:
                if each.tuner == place.number:
                    sys.stderr.write(f"{self._name}: its sampler learned from {each}\n")
            models = results.models(tuner) if tuner.model_weights else []
            sys.stderr.writelines(f"{self._name}: {line}\n" for line in lines_of(models))

    async def optimize_async(self, tuner: Tuner, **options: Any) -> None:
        """Run a tuner as `optimize` does, in a thread, while other coroutines go on.

        Parameters
        ----------
        tuner, options
            As for `optimize`. A `client` must be a synchronous one.

        Raises
        ------
        asyncio.CancelledError
            If the task is cancelled: once its running stages are saved. An error of the run, such
            as a state that cannot be saved, is raised in its place.

        Examples
        --------
        ``await study.optimize_async(tuner)``
        """
        run = asyncio.create_task(asyncio.to_thread(self.optimize, tuner, **options))
        try:
            # In short waits: the kernel of a notebook notices an interrupt at the next event only.
            while not run.done():
                await asyncio.wait([run], timeout=INTERRUPT_LOOK_SECONDS)
            await run
        except asyncio.CancelledError:
            # The thread may not have begun the run yet, so it is asked until it has ended.
            while not run.done():
                self.stop()
                await asyncio.wait([run], timeout=STOP_AGAIN_SECONDS)
            if (error := run.exception()) is not None:
                raise error from None
            raise

    def retry_failed(self) -> list[int]:
        """Have the next `optimize` train the failed trials of its tuner again.

        Each goes on from its last stored state, and its tuner takes it back. So trials that
        failed for a reason outside of the trainer (a mount, a full disk) are not lost. Tuners
        that have decided without the failed trials refuse: SHA, Hyperband, Milestones, PBT and
        Repeats.

        Returns
        -------
        list
            The numbers of the study's failed trials.

        Examples
        --------
        ``study.retry_failed(); study.optimize(tuner)``
        """
        return self._train_again("retry")

    def retrain_withdrawn(self) -> list[int]:
        """Have the next `optimize` train again, alone, the trials that an audit has withdrawn.

        These are the trials whose results rest on a withdrawn metric, and all others whose last
        report was made while trials were merged: they may be wrong as well. `optimize` trains
        those of its tuner from step 0 to the step of their last report, and the new metrics
        replace the old ones. The tuner does not get them: its decisions stay as they are in the
        event log. A trial that now fails keeps its old result, which stays marked.

        Returns
        -------
        list
            The numbers of the study's trials that are to be trained again; empty if no audit
            has found a difference. Failed trials are left out. So are trials that have more
            steps to train, because these are trained alone anyway.

        Examples
        --------
        ``study.retrain_withdrawn(); study.optimize(tuner)``
        """
        return self._train_again("retrain")

    def _train_again(self, how: Again) -> list[int]:
        """Remember, for the next run, which of the study's trials are to be trained again."""
        with self._memory.alone():
            self._memory.catch_up()
            self._again[how] = sorted(self._eligible(how))
            return self._again[how]

    def _eligible(self, how: Again) -> set[int]:
        """Return the trials that can be trained again in a way."""
        records = self._results.records
        match how:
            case "retry":
                return {n for n, record in records.items() if record.state is TrialState.FAIL}
            case "retrain":
                merged = merged_results(records.values()) if self._results.differences else {}
                return {n for n, steps in merged.items() if (records[n].until or 0) <= steps}
            case _:
                assert_never(how)

    def _repeat_differences(self) -> None:
        """Warn of what audits have found: results of the ended tuner may rest on it."""
        for text in figures_of(self._results.history).differences:
            logger.warning("study %s: %s", self._name, text)

    def _warn_of_queue(self, tuner: Tuner, *, goes_on: bool) -> None:
        """Log a warning if trials are queued that this tuner will not take."""
        queued = len(queued_points(self._memory.history))
        if queued and not tuner.most_queued:
            logger.warning(
                "study %s: %s draws no configurations, so %d queued trials wait on",
                *(self._name, type(tuner).__name__, queued),
            )
        elif queued and goes_on:
            logger.warning(
                "study %s: this tuner goes on, and takes no queued trials; %d wait for a new one, "
                "such as one with another seed",
                *(self._name, queued),
            )

    def _warn_of_seed(self, tuner: Tuner) -> None:
        """Log a warning if a new tuner has drawn what is trained already, by the same seed."""
        if isinstance(tuner, SampledTuner):
            logger.warning(
                "study %s: no step was trained, since all states were stored: %s draws the same "
                "configurations for the same seed, here %d; another seed draws others",
                *(self._name, type(tuner).__name__, tuner.seed),
            )

    def _refuse_changed_code(self) -> None:
        """Refuse to train other code than that with which the study was opened."""
        if (problem := self.code.problem()) is not None:
            raise ConfigurationError(problem)
        if written := self.code.written() - self._warned_of:
            self._warned_of |= written
            logger.warning(
                "study %s: the training code writes %s, which has another value now than at "
                "first; workers begin with the first value. To use another one, bind the name "
                "again and run create_study again",
                *(self._name, listed(sorted(written))),
            )

    def _known_problems(self, tuner: Tuner) -> Iterator[str]:
        """Yield the problems of a new tuner that its reports would show, if known by now.

        The names of all metrics are often known from the trainer's source, and values of the
        metric from the last reports of earlier trials. Some trainers know their hyper-parameters.
        """
        trainer, space = self._config.known_trainer, tuner.searched_space
        if space is not None:
            yield from name_problems_of(trainer, space.names)
        configurations = (each.sequences for each in tuner.configurations or ())
        config = self._config.config or {}
        yield from change_problems_of(trainer, configurations, tuner.max_steps, config)
        known = metric_names(trainer)
        for name in sorted(tuner.metrics_needed - known) if known else ():
            yield f"{type(tuner).__name__}: {unknown('metric', name, known)}"
        for problem in tuner.contradictions(self._results.metric):
            yield f"{type(tuner).__name__}: {problem}"
        for record in self._results.records.values():
            if record.value is not None:
                where = f" at step {record.steps} of trial {record.number}, an earlier one"
                metric, bounds = self._results.metric, tuner.value_bounds
                beyond = list(beyond_bounds(record.value, *bounds, metric=metric, where=where))
                if beyond:
                    yield f"{type(tuner).__name__}: {beyond[0]}"
                    return

    def _with_again(self, place: TunerPlace) -> TunerPlace:
        """Return a place with the trials of its tuner that are to be trained again."""
        retry, retrain = (self._locals_of(place, how) for how in _AGAIN)
        if asked := self._noted_to_retry(place):
            retry = tuple(sorted({*retry, *asked}))
        if retry and not place.tuner.takes_back:
            raise ConfigurationError(
                f"{type(place.tuner).__name__} cannot take a failed trial back: it has decided "
                f"without it; the study has {len(retry):,}"
            )
        return replace(place, retry=retry, retrain=retrain)

    def _noted_to_retry(self, place: TunerPlace) -> tuple[int, ...]:
        """Return a tuner's own numbers of the trials that somebody asked to retry elsewhere."""
        asked = trials_to_retry(self._results.history) & self._eligible("retry")
        records = [self._results.records[number] for number in asked]
        own = tuple(record.local for record in records if record.tuner == place.number)
        if own and not place.tuner.takes_back:
            logger.warning(
                "study %s: %s takes no failed trial back, so %d are not trained again",
                *(self._name, type(place.tuner).__name__, len(own)),
            )
            return ()
        return own

    def _locals_of(self, place: TunerPlace, how: Again) -> tuple[int, ...]:
        """Return a tuner's own numbers of its trials that are to be trained again in a way."""
        numbers = self._again.get(how)
        if not numbers:
            return ()
        known = self._eligible(how)
        records = [self._results.records[number] for number in numbers if number in known]
        return tuple(record.local for record in records if record.tuner == place.number)

    def _place_of(self, tuner: Tuner) -> TunerPlace:
        """Return the place of a tuner, with a copy of it: the caller's stays as it is."""
        return self._results.history.place_of(copy.deepcopy(tuner))

    def _beginning(self, place: TunerPlace, limits: Limits, timeouts: Timeouts) -> _Beginning:
        """Return a new run of a tuner, which has used nothing yet."""
        results, run = self._results, f"{self._name}-{uuid4().hex[:8]}"
        meter = Meter(
            limits,
            results.objective,
            results.used(place.number, with_best=limits.target is not None),
            partial(self._note_run, run, place.number),
            save_seconds=timeouts.waits.save_seconds,
        )
        keeper = SpeedKeeper(results.database, results.row.spec["fingerprint"])
        return _Beginning(run=run, place=place, meter=meter, keeper=keeper)

    def _take_over(self, tuner: Tuner, beginning: _Beginning) -> _Beginning:
        """Begin a run: from now on, an earlier driver that still runs elsewhere cannot write."""
        place, kept = beginning.place, beginning.keeper.recall()
        while not self._results.history.begin(beginning.run, place.number, kept):
            self._memory.catch_up()
            place = self._place_of(tuner)
        return replace(beginning, place=place, kept=kept)

    def _alone_rule(self, allow_failed_check: bool) -> AloneRule:
        """Return which trials are trained alone, by what audits and resumes have found so far."""
        differences = self._results.differences
        failures = [AuditFailure(text=note["text"], steps=note["steps"]) for note in differences]
        self._checks.repeat_audits(failures)
        if allow_failed_check:
            return AloneRule()
        texts = [each.text for each in failures]
        rule = AloneRule(is_all=True)
        if not failures:
            notes = refused_of(self._results.history)
            rule = alone_rule(notes, self._harmless)
            texts = [note["text"] for note in notes]
        if rule:
            which = "each trial" if rule.is_all else "the trials of a lineage"
            logger.warning(
                "study %s trains %s alone, from step 0: %s", self._name, which, texts[-1]
            )
        return rule

    def _finish_check(self, allow_failed_check: bool, **options: Any) -> None:
        """Wait for the check; a file that it saw may have been changed meanwhile."""
        self._checks.finish(allow_failed_check, **options)
        if self._config.read_files:
            self._refuse_changed_code()

    @property
    def _harmless(self) -> tuple[str, ...]:
        return harmless_of(self._config.known_trainer)

    def _train(
        self,
        begun: _Beginning,
        alone: AloneRule,
        first: Callable[..., None],
        later: Callable[..., None],
        begin: Callable[[Meter], tuple[_Beginning, bool]],
    ) -> Meter:
        """Run a tuner to its end; return the meter of the last run.

        When a resume is refused, or an audit finds a difference, the run ends, and another one
        trains alone what cannot be merged.

        Parameters
        ----------
        begun, alone
            The first run, and which trials it trains alone.
        first, later
            Carry out the first run, and one after it.
        begin
            Returns the next run, and whether there is nothing left for it.
        """
        carry_out, meter = first, begun.meter
        while True:
            try:
                carry_out(begun, alone=alone)
                return meter
            except AuditDifferenceError as difference:
                self._warn_of_difference(difference)
                alone = AloneRule(is_all=True)
            except ResumeRefusedError as error:
                for each in error.refused:
                    note_refused(self._results.history, begun.run, each)
                alone = alone_rule(refused_of(self._results.history), self._harmless)
                self._warn_of_refused(error, alone)
            meter.save()
            self._memory.catch_up()
            begun, has_ended = begin(meter)
            carry_out, meter = self._noting(later), begun.meter
            if has_ended:
                return meter

    def _noting(self, carry_out: Callable[..., None]) -> Callable[..., None]:
        """Return a function that carries out a run, and notes what it used."""

        def noted(begun: _Beginning, **options: Any) -> None:
            with self._noted(begun.meter):
                carry_out(begun, **options)

        return noted

    def _begin_anew(
        self, tuner: Tuner, limits: Limits, timeouts: Timeouts, before: Meter
    ) -> tuple[_Beginning, bool]:
        """Return another run of a tuner, and whether there is nothing left for it."""
        last = self._beginning(self._place_of(tuner), limits, timeouts)
        last.meter.stopped_by = before.stopped_by
        if last.place.has_ended or last.meter.reached() is not None:
            return last, True
        return self._take_over(tuner, last), False

    def _warn_of_refused(self, error: ResumeRefusedError, alone: AloneRule) -> None:
        which = (
            "the study merges nothing any more: trials that have not ended are trained"
            if alone.is_all
            else "trials with the same values at step 0 are trained"
        )
        logger.warning(
            "study %s: %s\nNothing was reported from this state, and what is stored stays. From "
            "now on %s alone, from step 0",
            *(self._name, error, which),
        )

    def _warn_of_difference(self, difference: AuditDifferenceError) -> None:
        logger.warning(
            "%s\nFrom now on the study merges nothing: trials that have not ended are trained "
            "again, each alone and from step 0. The others keep their results: %s",
            difference,
            RETRAIN,
        )

    @explained({}, "study.evaluate({'lr': 0.1}, steps=30)")
    def evaluate(
        self,
        hp: Mapping[str, object],
        steps: Step,
        *,
        client: Client | None = None,
        workers: int | None = None,
        last_line: bool = True,
    ) -> Metrics:
        """Train one configuration to `steps`, now, and return its metrics [Hippo Fig. 11].

        It becomes a trial of the study. If its metrics at this step are stored, these are the
        answer; else it is trained, from the last stored state of any trial that it shares.

        Parameters
        ----------
        hp
            Values and sequences by name.
        steps
            Number of steps.
        client, workers
            As for `optimize`.
        last_line
            Print to standard error, at the end, where the metrics come from.

        Raises
        ------
        TrainerError
            If its training failed, or was stopped (`stop`) before its end.
        """
        tuner = SingleTrial(hp, steps)
        self._memory.catch_up()
        refuse(name_problems_of(self._config.known_trainer, hp))
        refuse(_name_problems(hp, self._results.records.values()))
        place = self._results.history.place_of(tuner).number
        earlier = {stage.attempt for stage in self._results.stages()}
        self.optimize(tuner, client=client, workers=workers, progress=False, last_line=False)
        records = self._results.records.values()
        number = next((record.number for record in records if record.tuner == place), None)
        trial = None if number is None else self._results.trials[number]
        if trial is not None and trial.error is not None:
            raise TrainerError(self._results.records[trial.number].message, trial.error)
        if trial is None or trial.state is not TrialState.COMPLETE:
            raise TrainerError(
                f"study {self._name!r}: evaluate was stopped before step {steps}; the same call "
                "goes on where it was"
            )
        if last_line:
            stages = [row for row in self._results.stages() if row.attempt not in earlier]
            sys.stderr.write(f"{self._name}: {_origin(stages, steps)}\n")
        return trial.metrics[trial.steps]

    def stop(self) -> bool:
        """Make a running `optimize` save its running stages and return; it can be continued.

        Returns whether one was running; its cluster may still be starting.
        """
        if self._is_stopping is None:
            return False
        self._is_stopping = True
        if self.runner is not None:
            self.runner.request_stop()
        return True

    def plan_of_run(self, run: str) -> JobPlan:
        """Return the plan that workers get at the beginning of a run of that name."""
        return self._plan(run, Timeouts())

    def _interrupted_line(self, meter: Meter) -> str:
        """Return the line that says what is saved after an interrupt, and how to go on."""
        saved = "what ran is saved" if meter.of_this_run.steps else "no step was trained"
        how = "" if self._config.load_if_exists else ", with load_if_exists=True in create_study"
        return f"{self._name}: interrupted; {saved}; the same command goes on{how}"

    @contextmanager
    def _stoppable(self, meter: Meter) -> Iterator[None]:
        """Accept `stop` while the context lasts, and note at its end what the run used."""
        self._is_stopping = False
        try:
            with self._noted(meter):
                yield
        except StorageError as error:
            error.add_note(GOES_ON)
            raise
        finally:
            self._is_stopping = None

    @contextmanager
    def _noted(self, meter: Meter) -> Iterator[None]:
        """Note at the end of the context what a run used."""
        try:
            yield
        except BaseException:
            with suppress(StorageError):  # the first error is the one to raise
                meter.save()
            raise
        else:
            meter.save()

    def _note_run(self, run: str, place: int, used: Used) -> None:
        self._results.history.note(
            "run",
            run=run,
            place=place,
            wall_seconds=used.seconds,
            worker_seconds=used.worker_seconds,
            steps=used.steps,
            proof_seconds=used.proof_seconds,
        )

    def _run(
        self,
        beginning: _Beginning,
        *,
        client: Client,
        display: RunDisplay | None,
        announcer: Announcer,
        timeouts: Timeouts,
        alone: AloneRule,
        share: float,
        wait: Callable[[], None] | None = None,
    ) -> None:
        """Run a tuner until it has ended; the trials of a rule are not merged."""
        results, run, place = self._results, beginning.run, beginning.place
        with self._memory.deciding():
            engine = self.engine(alone=alone)
            engine.recall(beginning.kept)
            merges = results.options.merge and not alone.is_all
            started = StudyRun(
                study=self._name,
                study_id=results.row.id,
                owner=self._owner if merges else None,
                database=self._results.database,
                store=self._results.store,
                history=results.history,
                place=place,
                inputs=self._inputs(place.tuner),
                known_states=self._memory.known_states,
                plan=self._plan(run, timeouts),
                engine=engine,
                recorder=self._memory.recorder(run, timeouts.waits),
                meter=beginning.meter,
                timeouts=timeouts,
                audits=self._audit_terms(0.0 if alone.is_all else share),
                retention=self._config.retention,
                keep=Keep.parse(self._config.keep),
                kept_elsewhere=partial(kept_elsewhere, self._results.database, results.row.id),
                weight=self._config.weight,
                keeper=beginning.keeper,
                numerics=rule_of(results.row),
            )
            on_turn = None if display is None else display.follow(engine)
            with started.runner(
                client,
                on_turn=self._feeds.following(on_turn),
                on_safe=announcer.take,
            ) as self.runner:
                if self._is_stopping:
                    self.runner.request_stop()
                retried = {*place.retry}

                def begin(now: float, capacity: int) -> Outcome:
                    outcome = started.begin(now, capacity)
                    own = (r for r in results.records.values() if r.tuner == place.number)
                    note_retried(results.history, (r.number for r in own if r.local in retried))
                    return outcome

                try:
                    self.runner.run(begin, wait=wait)
                finally:
                    self.runner = None

    @contextmanager
    def _displayed(self, progress: bool | None, *, is_checked: bool) -> Iterator[RunDisplay | None]:
        """Give a live display of runs, or None."""
        from dasktune.report.progress import display, in_notebook

        if not (sys.stderr.isatty() or in_notebook() if progress is None else progress):
            if is_checked and progress is None:
                sys.stderr.write(f"{self._name}: {self._checks.doing}; then trials begin\n")
            yield None
            return
        with display(self._results) as shown:
            shown.say("starting workers")
            yield shown

    def _audit_terms(self, share: float) -> AuditTerms | None:
        """Return the terms of a run's audits; None if trials train alone, or the share is 0."""
        if not share or not self._results.options.merge:
            return None
        return AuditTerms(share=share, fail=self._checks.record_audit)

    def engine(self, *, alone: AloneRule | None = None) -> Engine:
        """Return a new engine of the study; from now on the trials of a rule are trained alone."""
        alone = alone or AloneRule()
        return Engine(
            self._memory.dispatcher(),
            objective=self._results.objective,
            trials=self._memory.records,
            fails_on_nan=self._config.on_nan == "fail",
            trains_alone=alone.is_all,
            lone_lineages=alone.lineages,
            needs_of=self._config.needs_of(),
            devices_of=self._config.devices_of(),
            scale=self._config.scale,
        )

    def _inputs(self, tuner: Tuner) -> dict[str, object]:
        results = self._results
        records = results.records.values()
        row, database = results.row, results.database
        given = () if self._transfer is None else given_trials(database, row, tuner)
        return inputs_of(
            tuner, results.objective, records, queued_points(self._memory.history), given
        )

    def _known_trials(self, tuner: Tuner, limits: Limits) -> Callable[[], KnownTrials]:
        return known_trials(self._results, tuner, self._inputs(tuner), limits)

    def _plan(self, run: str, timeouts: Timeouts) -> JobPlan:
        options, code = self._results.options, pack(self._config.known_trainer)
        # After packing: a cell may have run since the beginning of the run.
        self._refuse_changed_code()
        is_compared = self._checks.is_running or bool(self._config.read_files)
        return JobPlan(
            run=run,
            code=code,
            config=dict(self._config.config or {}),
            seed=self._results.seed,
            store=seen_by_workers(self._results.store.url),
            report_every=self._config.report_every,
            needs=options.needs,
            needs_process=getattr(self._config.known_trainer, "requires_process", False),
            saves_by_time=options.saves.every is None,
            proves=self._proves,
            is_apart=not options.merge,
            step_seconds=timeouts.step_seconds,
            driver=this_process(),
            fingerprint=self._results.row.spec["fingerprint"] if is_compared else "",
            code_folder=code_folder(self._config.known_trainer),
        )

    def open_tuner(self, tuner: Tuner) -> Opened:
        """Prepare a tuner for `ask` and `tell`."""
        if self._config.trainer is not None:
            name = self._config.trainer.__qualname__
            raise ConfigurationError(
                f"study {self._name!r} trains with {name}; ask and tell "
                "are for studies without a trainer: create_study(None, ...)"
            )
        refuse(_run_problems(tuner, None, None, None, (), None))
        self._memory.catch_up()
        place = self._results.history.place_of(copy.deepcopy(tuner))
        engine = self.engine()
        engine.dismiss()  # stages that the loop of another tuner still waits for
        self._feeds.open()
        begin = partial(begin_tuner, engine, place, self._inputs(place.tuner))
        return Opened(engine=engine, recorder=self._memory.recorder(), begin=begin)


def _nothing(_: str) -> None:
    """Show a line to nobody."""


def _nothing_left(results: StudyResults) -> str:
    """Return the line of a run whose tuner had ended before, with what is known."""
    trials = counted(results.history.count_trials(), "trial")
    line = f"nothing was left to train: the study has {trials}"
    is_single = len(results.objective.metrics) == 1
    best = results.history.best_trial(results.direction) if is_single else None
    return line if best is None else f"{line}, best {results.metric} {best.value:.6g}"


def _origin(stages: list[StageRow], steps: Step) -> str:
    """Return where the metrics of a step come from, by the stages that ran for them."""
    trained = sum(stage.steps for stage in stages)
    if not trained:
        return f"trained no step: the metrics of step {steps:,} are stored"
    start = min(stage.start for stage in stages)
    origin = f"from the stored state of step {start:,}" if start else "from the beginning"
    return f"trained {counted(trained, 'step')} to step {steps:,}, {origin}"


def _name_problems(hp: Mapping[str, object], records: Iterable[TrialRecord]) -> Iterator[str]:
    """Yield a problem for each name that no trial has, if a name that all trials have is missing.

    Trials without a report do not count: a wrong name may be why they failed.
    """
    known = [
        set(record.sequences) for record in records if record.was_trained_here and record.steps
    ]
    missing = set.intersection(*known) - set(hp) if known else set()
    for name in hp if missing else ():
        if not any(name in names for names in known):
            yield unknown("hyper-parameter", name, sorted(set().union(*known)))


def _transfer_problems(transfer: object) -> list[str]:
    known = transfer is None or transfer in TRANSFERS
    return [] if known else [unknown("transfer", str(transfer), TRANSFERS)]


def _run_problems(
    tuner: object,
    client: object,
    workers: object,
    limits: object,
    callbacks: tuple[object, ...],
    timeouts: object,
) -> list[str]:
    """Return the problems of the arguments of `Study.optimize`."""
    problems = []
    if not isinstance(tuner, Tuner):
        problems.append(tuner_problem(tuner))
    if client is not None and not hasattr(client, "submit"):
        problems.append(f"client must be a dask.distributed.Client, got {client!r}")
    if workers is not None and (type(workers) is not int or workers < 1):
        problems.append(f"workers must be an int >= 1, got {workers!r}")
    if limits is not None and not isinstance(limits, Limits):
        problems.append(f"limits must be dasktune.Limits, got {limits!r}")
    if timeouts is not None and not isinstance(timeouts, Timeouts):
        problems.append(f"timeouts must be dasktune.Timeouts, got {timeouts!r}")
    problems += [
        f"a callback must be a dasktune.Callback, got {callback!r}"
        for callback in callbacks
        if not isinstance(callback, Callback)
    ]
    return problems
