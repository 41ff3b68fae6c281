"""Running a tuner in a study: the steps of `Study.optimize`."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dasktune._cluster import fork_server
from dasktune._driver.audit_notes import AuditFailure
from dasktune._driver.history import TunerPlace
from dasktune._driver.interrupt import interruptible
from dasktune._driver.refused_resumes import AloneRule, alone_rule, refused_of
from dasktune._driver.run import cluster_of, device_of_run, gpus_per_local_worker
from dasktune._engine.engine import Engine, refuse_objectives
from dasktune._engine.limits import Limits, Meter
from dasktune._engine.timeouts import INTERRUPT_LOOK_SECONDS, STOP_AGAIN_SECONDS, Timeouts
from dasktune._results.rules import refuse_other_rule
from dasktune._study.additions import queued_points
from dasktune._study.again import TrialsAgain
from dasktune._study.beginning import (
    Beginning,
    engine_of,
    inputs_in,
    job_plan,
    new_run,
    place_in,
    take_over,
)
from dasktune._study.callbacks import Announcer, Callback
from dasktune._study.current_run import CurrentRun
from dasktune._study.displayed import displayed
from dasktune._study.first_check import KnownTrials, NewTuner, TrainerChecks, trials_ahead
from dasktune._study.from_optuna import OF_OPTIMIZE, explained
from dasktune._study.known_problems import known_problems
from dasktune._study.last_lines import interrupted, lines_of_end, nothing_left
from dasktune._study.main_guard import guard_problem
from dasktune._study.parts import StudyParts
from dasktune._study.run_options import RunOptions, listed_callbacks
from dasktune._study.run_warnings import (
    warn_by_advice,
    warn_of_found_differences,
    warn_of_no_best,
    warn_of_queue,
    warn_of_seed,
    warn_of_trials_alone,
)
from dasktune._study.tuner_run import TunerRun
from dasktune._worker.job import JobPlan
from dasktune.algos.base import Tuner
from dasktune.errors import ConfigurationError, refuse
from dasktune.space import contradictions
from dasktune.trainer.base import harmless_of

if TYPE_CHECKING:
    from distributed import Client

    from dasktune._driver.runner import DaskRunner

logger = logging.getLogger(__name__)


class Optimizer:
    """Runs tuners in a study, one at a time; callbacks get the `dasktune.Study`.

    Attributes
    ----------
    limit, ending, had_ended
        As for `dasktune.Study`.
    again
        The trials that the next run trains again.
    """

    def __init__(self, study: Any, parts: StudyParts) -> None:
        self._study, self._parts = study, parts
        self._current = CurrentRun()
        self._checks = TrainerChecks(parts.results, parts.config, self._current)
        self.again = TrialsAgain(parts.memory, parts.results)
        self.limit: str | None = None
        self.ending = ""
        self.had_ended = False

    @explained(OF_OPTIMIZE, "study.optimize(dasktune.algos.ASHA(space, ...))")
    def optimize(
        self,
        tuner: Tuner,
        *,
        client: Client | None = None,
        workers: int | str | None = None,
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
            Number of workers, or a range such as ``"0-16"``: the study starts as many as it can
            use, and ends those that are idle for a minute. Without `client` these are processes of
            this host; if None, one per core, or as many as the GPUs allow. With `client`, its
            cluster must be able to scale; if None, its size stays, or the study follows the bounds
            of its `adapt`, which rests meanwhile. See docs/clusters.md.
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
            earlier check. The check runs beside the first stages, and those that load a state
            wait for it. It may train 1% of the steps, or work for 30 seconds if that is more.
            A recorded failure counts in any case.
        allow_failed_check
            Merge trials although a check or an audit found that this trainer does not resume
            exactly; there are no audits then.
        audit
            As for `dasktune.create_study`, for this run; None takes that of the study.
        timeouts
            How long workers, their steps, the scheduler and the database may be silent;
            the defaults of `dasktune.Timeouts` if None.
        transfer
            With ``"database"`` a sampler begins with the finished trials of other studies in the
            same database that have the same trainer, metric, direction and space. Only samplers
            that learn use them. They are inputs in the event log, so a replay needs no other
            study. None: only the trials of this study. A tuner that goes on keeps what it began
            with.

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
        self._refuse_without_trainer()
        options = RunOptions(
            tuner=tuner,
            client=client,
            workers=workers,
            gpus_per_worker=gpus_per_worker,
            trials_per_gpu=trials_per_gpu,
            limits=Limits() if limits is None else limits,
            callbacks=listed_callbacks(callbacks),
            progress=progress,
            last_line=last_line,
            check=check,
            allow_failed_check=allow_failed_check,
            audit=self._parts.config.audit if audit is None else audit,
            timeouts=Timeouts() if timeouts is None else timeouts,
            transfer=transfer,
        )
        self._refuse_unfit(tuner)
        with self._parts.memory.alone():
            place = self._find_place(options)
            self._refuse_and_warn_before(tuner, place)
            if place.has_ended:
                self._say_that_nothing_was_left(options)
                return
            meter = self._run_unless_limited(options, place)
            last_place = self._note_the_end(tuner, meter)
        self._say_how_it_ended(options, last_place, meter, was_new=not place.records)

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

    def stop(self) -> bool:
        """Make a running `optimize` save its running stages and return; it can be continued.

        Returns whether one was running; its cluster may still be starting.
        """
        return self._current.stop()

    @property
    def runner(self) -> DaskRunner | None:
        """The runner that carries out the run; None between runs."""
        return self._current.runner

    def plan_of_run(self, run: str) -> JobPlan:
        """Return the plan that workers get at the beginning of a run of that name."""
        return job_plan(self._parts, run, Timeouts(), is_compared=self._checks.running is not None)

    def engine(self) -> Engine:
        """Return a new engine of the study."""
        return engine_of(self._parts, AloneRule())

    # --------------------------------------------------------------- before the run

    def _refuse_without_trainer(self) -> None:
        _ = self._parts.config.known_trainer

    def _refuse_unfit(self, tuner: Tuner) -> None:
        """Refuse a tuner for other objectives, or with a space that the needs contradict."""
        refuse_objectives(tuner, self._parts.results.objective)
        if tuner.searched_space is not None:
            refuse(contradictions(tuner.searched_space, self._parts.memory.options.needs))

    def _find_place(self, options: RunOptions) -> TunerPlace:
        """Read what other processes have added; return the number and the records of the tuner."""
        memory = self._parts.memory
        memory.catch_up()
        memory.look_again(options.timeouts.waits.listing_seconds)
        place, self.limit = self.again.added_to(place_in(memory, options.tuner)), None
        self.ending, self.had_ended = place.ending, place.has_ended
        return place

    def _refuse_and_warn_before(self, tuner: Tuner, place: TunerPlace) -> None:
        """Refuse what is known to go wrong, and warn of what the user may not expect."""
        parts, is_new = self._parts, not place.records
        if is_new:
            refuse(known_problems(parts.config, parts.results, tuner))
            warn_by_advice(parts.name, tuner)
        queued = len(queued_points(parts.memory.history))
        warn_of_queue(parts.name, tuner, queued, goes_on=not is_new)
        parts.code.refuse_change()

    def _say_that_nothing_was_left(self, options: RunOptions) -> None:
        parts = self._parts
        logger.info("study %s: this tuner has ended already", parts.name)
        warn_of_found_differences(parts.name, parts.memory.history)
        if options.last_line:
            self._print([nothing_left(parts.results)])

    # ------------------------------------------------------------------------ a run

    def _run_unless_limited(self, options: RunOptions, place: TunerPlace) -> Meter:
        """Run a tuner to its end, unless earlier runs have reached a limit; return the meter."""
        beginning = new_run(self._parts, options, place)
        if beginning.meter.reached() is not None:
            return beginning.meter
        refuse_other_rule(self._parts.memory.row)
        gpus = self._gpus_per_worker(options)
        self._prepare_processes(options, gpus)
        alone = self._trials_alone(options)
        is_unchecked = self._refuse_failed_trainer(options, alone)
        beginning = self._take_over(options, beginning)
        is_checked = is_unchecked and options.checks
        ahead = self._trials_ahead(options, beginning) if is_checked else None
        announcer = Announcer(self._study, options.callbacks, self._parts.feeds)
        try:
            return self._run_on_cluster(options, beginning, alone, announcer, ahead, gpus)
        finally:
            announcer.end()

    def _gpus_per_worker(self, options: RunOptions) -> float:
        """Return the GPUs of each local worker; the checks get to know the device of the run."""
        client, needs = options.client, self._parts.memory.options.needs
        gpus = gpus_per_local_worker(client, options.gpus_per_worker, options.trials_per_gpu, needs)
        self._checks.device = device_of_run(client, gpus, needs)
        return gpus

    def _trials_alone(self, options: RunOptions) -> AloneRule:
        """Return which trials are trained alone, by what audits and resumes have found so far."""
        parts = self._parts
        differences = parts.results.differences
        failures = [AuditFailure(text=note["text"], steps=note["steps"]) for note in differences]
        self._checks.repeat_audits(failures)
        if options.allow_failed_check:
            return AloneRule()
        texts = [failure.text for failure in failures]
        rule = AloneRule(is_all=True)
        if not failures:
            notes = refused_of(parts.memory.history)
            rule = alone_rule(notes, harmless_of(parts.config.known_trainer))
            texts = [note["text"] for note in notes]
        if rule:
            warn_of_trials_alone(parts.name, rule, texts[-1])
        return rule

    def _refuse_failed_trainer(self, options: RunOptions, alone: AloneRule) -> bool:
        """Refuse to merge trials of a trainer that has failed; return whether it is unchecked."""
        return not alone.is_all and self._checks.refuse_failed(options.allow_failed_check)

    def _take_over(self, options: RunOptions, beginning: Beginning) -> Beginning:
        """Begin the run in the event log, with the trials that are to be trained again."""
        beginning = take_over(self._parts.memory, options.tuner, beginning)
        beginning = replace(beginning, place=self.again.added_to(beginning.place))
        self.again.forget()
        return beginning

    def _prepare_processes(self, options: RunOptions, gpus: float) -> None:
        """Prepare this process for those of a local cluster."""
        if options.client is None and (problem := guard_problem()):
            raise ConfigurationError(problem)
        if options.client is None and not gpus:
            fork_server.start(fork_server.libraries_of(self._parts.config.known_trainer.__module__))
        else:
            fork_server.end_unused()

    def _trials_ahead(self, options: RunOptions, beginning: Beginning) -> KnownTrials | NewTuner:
        """Return the trials that the check of the trainer may train."""
        tuner = beginning.place.tuner
        inputs = inputs_in(self._parts, tuner, options.transfer)
        return trials_ahead(self._parts.results, tuner, inputs, options.limits)

    def _run_on_cluster(
        self,
        options: RunOptions,
        beginning: Beginning,
        alone: AloneRule,
        announcer: Announcer,
        ahead: KnownTrials | NewTuner | None,
        gpus: float,
    ) -> Meter:
        """Run a tuner on the user's cluster or a local one, and check the trainer meanwhile."""
        parts, meter = self._parts, beginning.meter
        doing = None if ahead is None else self._checks.doing()
        with (
            displayed(parts.results, options.progress, doing) as display,
            parts.feeds,
            self._current.stoppable(meter),
            interruptible(self.stop, lambda: interrupted(parts.config, meter)),
            self._checks.beside(ahead, options.timeouts.step_seconds),
            cluster_of(
                *(options.client, options.workers, gpus, options.trials_per_gpu),
                idle_seconds=options.timeouts.waits.idle_seconds,
            ) as client,
        ):
            return TunerRun(
                parts,
                options,
                checks=self._checks,
                current=self._current,
                client=client,
                display=display,
                announcer=announcer,
            ).train(beginning, alone)

    # ---------------------------------------------------------------- after the run

    def _note_the_end(self, tuner: Tuner, meter: Meter) -> TunerPlace:
        """Return the place of the tuner after the run; why it has ended is noted here."""
        place = place_in(self._parts.memory, tuner)
        self.limit = None if place.has_ended else meter.reached()
        self.ending = place.ending
        return place

    def _say_how_it_ended(
        self, options: RunOptions, place: TunerPlace, meter: Meter, *, was_new: bool
    ) -> None:
        if was_new and place.has_ended and not meter.of_this_run.steps:
            warn_of_seed(self._parts.name, options.tuner)
        warn_of_no_best(self._parts.results)
        if options.last_line and (place.has_ended or self.limit is not None):
            results, tuner = self._parts.results, options.tuner
            self._print(lines_of_end(results, tuner, place, self.limit, meter))

    def _print(self, lines: Iterable[str]) -> None:
        sys.stderr.writelines(f"{self._parts.name}: {line}\n" for line in lines)
