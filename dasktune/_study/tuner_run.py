"""Running a tuner on a cluster to its end: in several runs, if trials turn out to train alone."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from dasktune._driver.audit_notes import AuditDifferenceError
from dasktune._driver.numerics import rule_of
from dasktune._driver.refused_resumes import (
    AloneRule,
    ResumeRefusedError,
    alone_rule,
    note_refused,
    refused_of,
)
from dasktune._driver.retry_notes import note_retried
from dasktune._driver.run import AuditTerms, StudyRun
from dasktune._engine.engine import Engine
from dasktune._engine.limits import Meter
from dasktune._engine.outcome import Outcome
from dasktune._results.keep import kept_elsewhere
from dasktune._study.beginning import (
    Beginning,
    engine_of,
    inputs_in,
    job_plan,
    new_run,
    place_in,
    take_over,
)
from dasktune._study.callbacks import Announcer
from dasktune._study.check_beside import CheckBeside
from dasktune._study.current_run import CurrentRun, noted
from dasktune._study.first_check import TrainerChecks
from dasktune._study.parts import StudyParts
from dasktune._study.run_options import RunOptions
from dasktune._study.run_warnings import warn_of_difference, warn_of_refused
from dasktune.storage.retention import Keep
from dasktune.trainer.base import harmless_of

if TYPE_CHECKING:
    from distributed import Client

    from dasktune.report.progress import RunDisplay


class TunerRun:
    """Carries out a tuner on a cluster, for `Study.optimize`."""

    def __init__(
        self,
        parts: StudyParts,
        options: RunOptions,
        *,
        checks: TrainerChecks,
        current: CurrentRun,
        client: Client,
        display: RunDisplay | None,
        announcer: Announcer,
    ) -> None:
        self._parts, self._options = parts, options
        self._memory = parts.memory
        self._checks, self._current = checks, current
        self._client, self._display, self._announcer = client, display, announcer
        self._check = CheckBeside(checks, self._finish_check, self._refuse_changed_files, display)

    def train(self, beginning: Beginning, alone: AloneRule) -> Meter:
        """Run the tuner to its end; return the meter of the last run.

        When a resume is refused, or an audit finds a difference, the run ends, and another one
        trains alone what cannot be merged. The caller notes what the first run used.
        """
        is_first = True
        while True:
            try:
                with nullcontext() if is_first else noted(beginning.meter):
                    self._carry_out(beginning, alone)
                return beginning.meter
            except (AuditDifferenceError, ResumeRefusedError) as error:
                alone = self._alone_after(error, beginning.run)
            beginning.meter.save()
            self._memory.catch_up()
            beginning, is_first = self._next(beginning.meter), False
            if beginning.place.has_ended or beginning.meter.reached() is not None:
                return beginning.meter
            beginning = take_over(self._memory, self._options.tuner, beginning)

    def _alone_after(self, error: AuditDifferenceError | ResumeRefusedError, run: str) -> AloneRule:
        """Return the trials that are trained alone from now on, because of what ended a run."""
        if isinstance(error, AuditDifferenceError):
            warn_of_difference(error)
            return AloneRule(is_all=True)
        history = self._memory.history
        for refused in error.refused:
            note_refused(history, run, refused)
        alone = alone_rule(refused_of(history), harmless_of(self._parts.config.known_trainer))
        warn_of_refused(self._parts.name, error, alone)
        return alone

    def _next(self, before: Meter) -> Beginning:
        """Return another run of the tuner; it may have ended, or have reached a limit."""
        place = place_in(self._memory, self._options.tuner)
        beginning = new_run(self._parts, self._options, place)
        beginning.meter.stopped_by = before.stopped_by
        return beginning

    def _carry_out(self, beginning: Beginning, alone: AloneRule) -> None:
        """Carry out one run; the trials of a rule are not merged."""
        place, history = beginning.place, self._memory.history
        with self._memory.deciding():
            engine = engine_of(self._parts, alone)
            engine.recall(beginning.kept)
            started = self._started(beginning, engine, alone)

            def begin(now: float, capacity: int) -> Outcome:
                outcome, retried = started.begin(now, capacity), {*place.retry}
                own = (r for r in self._memory.records.values() if r.tuner == place.number)
                note_retried(history, (r.number for r in own if r.local in retried))
                return outcome

            on_turn = None if self._display is None else self._display.follow(engine)
            with (
                started.runner(
                    self._client,
                    on_turn=self._parts.feeds.following(on_turn),
                    on_safe=self._announcer.take,
                    check=self._check,
                ) as runner,
                self._current.carried_out_by(runner),
            ):
                runner.run(begin)
            if not self._current.is_stopping:
                self._check.wait_for_files()

    def _started(self, beginning: Beginning, engine: Engine, alone: AloneRule) -> StudyRun:
        """Return the driver's parts for one run."""
        parts, memory, config = self._parts, self._memory, self._parts.config
        options, row, place = self._options, self._memory.row, beginning.place
        merges = memory.options.merge and not alone.is_all
        is_audited = merges and options.audited_share > 0
        terms = AuditTerms(share=options.audited_share, fail=self._checks.record_audit)
        return StudyRun(
            study=parts.name,
            study_id=row.id,
            owner=f"{row.root}:{row.created}" if merges else None,
            database=memory.database,
            store=memory.store,
            history=memory.history,
            place=place,
            inputs=inputs_in(parts, place.tuner, options.transfer),
            known_states=memory.known_states,
            plan=job_plan(
                *(parts, beginning.run, options.timeouts),
                is_compared=self._checks.running is not None,
                proves=not options.allow_failed_check,
            ),
            engine=engine,
            recorder=memory.recorder(beginning.run, options.timeouts.waits),
            meter=beginning.meter,
            timeouts=options.timeouts,
            audits=terms if is_audited else None,
            retention=config.retention,
            keep=Keep.parse(config.keep),
            kept_elsewhere=partial(kept_elsewhere, memory.database, row.id),
            weight=config.weight,
            keeper=beginning.keeper,
            numerics=rule_of(row),
        )

    def _finish_check(self) -> None:
        is_audited = self._options.audited_share > 0
        self._checks.finish(self._options.allow_failed_check, is_audited=is_audited)

    def _refuse_changed_files(self) -> None:
        """Refuse to go on if a file that the check saw was changed meanwhile."""
        if self._parts.config.read_files:
            self._parts.code.refuse_change()
