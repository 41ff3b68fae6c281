"""The check of a trainer whose trials are merged for the first time.

A trainer without a verdict is checked in processes of its own, while the cluster starts and the
first stages train; those that load a state wait for it. A failure ends the run, and so does a
trainer that refuses its hyper-parameters, or whose own code fails in two trials. What the check
does not reach in its time is left to the audits of the run.
"""

from __future__ import annotations

import builtins
import copy
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import IO, Literal, assert_never

from dasktune._cluster import fork_server
from dasktune._cluster.forked_process import ForkedProcess
from dasktune._driver.audit_notes import AUDIT_FAILED, AuditFailure
from dasktune._engine.alike import user_line
from dasktune._engine.limits import Limits
from dasktune._engine.timeouts import (
    FIRST_CHECK_FILES_SECONDS,
    FIRST_CHECK_LAST_SECONDS,
    FIRST_CHECK_SECONDS,
    FIRST_CHECK_STEP_SECONDS,
)
from dasktune._engine.trials import TrialRecord
from dasktune._results.results import StudyResults
from dasktune._results.summary import steps_asked
from dasktune._study.config import StudyConfig
from dasktune._study.current_run import CurrentRun
from dasktune._worker.gpus import visible_gpus
from dasktune.algos.base import Tuner
from dasktune.errors import ConfigurationError, DasktuneError, TrainerError, UnknownValueError
from dasktune.storage.verdicts import SEVERAL, Verdicts, files_of
from dasktune.trainer.check_resume.check import CheckLimit, ResumeReport, check_resume
from dasktune.trainer.check_resume.limited import (
    CheckEndedError,
    CheckTimes,
    LimitedProcesses,
    WatchedProcess,
    start_interpreter,
)
from dasktune.trainer.check_resume.new_process import BrokenRuleError, main
from dasktune.trainer.check_resume.plan import SHORTEST, change_or_end, until
from dasktune.trainer.check_resume.verdict import NO_VERDICT, binding_here, device_of, verdict
from dasktune.trainer.fingerprint.read_files import (
    changed_since,
    code_folder,
    kept_files,
    uncovered_files,
)
from dasktune.types import Extend, Register, Sequences, Step

logger = logging.getLogger(__name__)

FREE_SHARE = 100
"""One of so many requested steps may be trained for the check, however long it takes."""

_MAY_FAIL = "; mend it, or use check=False, by which such trials fail and others are trained"
"""Remedy for a trial whose values the trainer refuses."""

_BUGS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError),
    *(RuntimeError, ValueError),
)
"""Errors that a trainer's own code makes on each machine."""

_OF_GPUS = ("CUDA", "HIP", "cuDNN", "out of memory")
"""What is in messages about GPUs, whatever their class."""

_MOST_NAMED = 5
_MOST_TRIALS = 100
"""Trials among which the check looks for the one whose values change first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTrial:
    """A trial that a check may train: its hyper-parameters by name, and its last step."""

    sequences: Sequences
    max_steps: Step

    @property
    def change(self) -> Step:
        """The first step at which a value changes; `max_steps` if none does."""
        return change_or_end(self.sequences, self.max_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTrials:
    """The first trials of a run before it begins, and the steps that it requests, at least."""

    trials: tuple[CheckedTrial, ...]
    requested: Step

    def known(self) -> KnownTrials:
        """Return the trials themselves."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTuner:
    """A copy of a tuner that begins, to ask for its first trials; `inputs` are what it gets."""

    tuner: Tuner
    inputs: Mapping[str, object]
    most_steps: Step | None

    def known(self) -> KnownTrials:
        """Return the trials that the tuner would register first; it may take long to draw them."""
        self.tuner.prepare(self.inputs)
        decisions = self.tuner.ask(1)
        ends = [each.until for each in decisions if isinstance(each, Extend)]
        # Trials that begin later request as many steps as the first ones, at least.
        requested = sum(ends) + (self.tuner.to_begin or 0) * min(ends, default=0)
        return KnownTrials(
            trials=_first(each for each in decisions if isinstance(each, Register)),
            requested=requested if self.most_steps is None else min(requested, self.most_steps),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotChecked:
    """A check without a result, and the reason."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A check whose trainer refuses the hyper-parameters of a trial, the reason and the remedy."""

    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCodeFailed:
    """A check whose trials failed by the trainer's own code, and the last error."""

    reason: str


Outcome = ResumeReport | NotChecked | Refused | OwnCodeFailed


class FirstCheck:
    """A check in a thread; it ends early if the current run is stopped."""

    def __init__(
        self,
        config: StudyConfig,
        *,
        seed: int,
        device: str,
        ahead: KnownTrials | NewTuner,
        step_seconds: float,
        current: CurrentRun,
    ) -> None:
        self._config, self._ahead = config, ahead
        self._seed, self._device, self._step_seconds = seed, device, step_seconds
        self._current, self._is_closed = current, False
        self._has_drawn, self._has_files = threading.Event(), threading.Event()
        self._has_ended = threading.Event()
        self._since = time.time_ns()
        self._at_end: Callable[[], None] = lambda: None
        self._processes: LimitedProcesses | None = None
        self._outcome: Outcome | BaseException = NotChecked(reason="it was interrupted")
        self._thread = threading.Thread(target=self._work, name="first check", daemon=True)
        self._thread.start()

    @property
    def steps(self) -> Step:
        """Number of steps that it has trained."""
        return 0 if self._processes is None else self._processes.steps

    @property
    def is_cancelled(self) -> bool:
        """Whether it is to end with what it has found so far."""
        return self._is_closed or self._current.is_stopping

    @property
    def has_ended(self) -> bool:
        """Whether it has a result."""
        return self._has_ended.is_set()

    def cancel(self) -> None:
        """Have it end soon."""
        self._is_closed = True

    def wait_for_trials(self, at_end: Callable[[], None]) -> None:
        """Wait until it has asked its copy of the tuner; `at_end` is called when it has ended.

        Two threads must not run a user's objective, or sampler, at the same time.
        """
        self._has_drawn.wait()
        self._at_end = at_end
        if self.has_ended:
            at_end()

    def wait_for_files(self) -> bool:
        """Wait until it has trained a step or ended, but not for ever; return whether it has."""
        return self._has_files.wait(FIRST_CHECK_FILES_SECONDS)

    @property
    def has_files(self) -> bool:
        """Whether it has trained a step, and knows most files that the trainer reads."""
        return self._has_files.is_set()

    @property
    def files(self) -> dict[str, str]:
        """The contents of files that the trainer reads, as far as is known."""
        opened = [] if self._processes is None else self._processes.opened
        trainer, config = self._config.known_trainer, self._config.config or {}
        return self.with_edits(kept_files(opened, trainer, config))

    def with_edits(self, files: Mapping[str, str]) -> dict[str, str]:
        """Return the contents of files; those that were edited since it began have none.

        Stages may have read them before or after that.
        """
        folder = code_folder(self._config.known_trainer)
        return {**files, **dict.fromkeys(changed_since(files, folder, self._since), SEVERAL)}

    def result(self) -> Outcome:
        """Wait for the end of the check, and return its outcome."""
        self._thread.join()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    @property
    def progress(self) -> str:
        """The step that it trains, of all that it will train."""
        planned = 0 if self._processes is None else self._processes.planned
        return f"step {min(self.steps + 1, planned):,} of {planned:,}" if planned else "starting"

    def _work(self) -> None:
        try:
            self._outcome = self._checked()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is read
            self._outcome = error
        finally:
            for event in (self._has_drawn, self._has_files, self._has_ended):
                event.set()
        self._at_end()

    def _checked(self) -> Outcome:
        if self._device == "cuda" and not visible_gpus():
            return NotChecked(reason="its stages train on a GPU, and this machine has none")
        known = self._ahead.known()
        self._has_drawn.set()
        trials = [trial for trial in known.trials if trial.max_steps >= SHORTEST]
        if not trials:
            return NotChecked(reason=f"no trial with {SHORTEST} steps or more is known yet")
        first, free = min(trials, key=lambda each: each.change), known.requested // FREE_SHARE
        # One trial may fail by its values, and the others be trained: a second one is tried.
        others = [each for each in trials if each.sequences != first.sequences]
        names = {frozenset(each.sequences) for each in trials}
        outcome = self._outcome_of(first, free, are_alike=len(names) == 1)
        if isinstance(outcome, OwnCodeFailed) and others:
            unlike = min(others, key=lambda each: _equal_sequences(each, first))
            return self._outcome_of(unlike, free, are_alike=len(names) == 1)
        return outcome

    def _outcome_of(self, trial: CheckedTrial, free: Step, *, are_alike: bool) -> Outcome:
        self._processes = LimitedProcesses(
            CheckTimes(seconds=FIRST_CHECK_SECONDS, free=free, step_seconds=self._step_seconds),
            is_cancelled=lambda: self.is_cancelled,
            start=self._start,
            has_files=self._has_files,
        )
        try:
            with self._processes as processes:
                report = check_resume(
                    self._config.known_trainer,
                    {name: until(each, trial.max_steps) for name, each in trial.sequences.items()},
                    config=self._config.config,
                    seed=self._seed,
                    device=self._device,
                    limit=CheckLimit(seconds=FIRST_CHECK_LAST_SECONDS, free=free),
                    run=processes.run,
                )
        except UnknownValueError as error:
            # If all trials have the same names, the name is misspelt: no trial can be trained.
            return Refused(reason=str(error), remedy="" if are_alike else _MAY_FAIL)
        except (ConfigurationError, BrokenRuleError) as error:
            return Refused(reason=str(error), remedy=_MAY_FAIL)
        except (DasktuneError, CheckEndedError) as error:
            own = own_error(error) if isinstance(error, TrainerError) else ""
            return OwnCodeFailed(reason=own) if own else NotChecked(reason=str(error))
        except OSError as error:  # temporary files and processes of this machine, not the trainer
            return NotChecked(reason=f"this machine cannot check it: {error}")
        return NotChecked(reason="; ".join(report.unchecked)) if report.is_empty else report

    def _start(self, errors: IO[bytes]) -> tuple[WatchedProcess, int]:
        """Start a process: forked from one that has imported torch, if workers are forked, too."""
        if self._device == "cpu" and fork_server.serves({}):
            with suppress(OSError, EOFError):  # the server is gone
                process = ForkedProcess(main, errors=errors)
                return process, process.parent
        return start_interpreter(errors)


def _equal_sequences(trial: CheckedTrial, other: CheckedTrial) -> int:
    """Return the number of hyper-parameters that two trials have in common, values included."""
    return len([*filter(other.sequences.items().__contains__, trial.sequences.items())])


def own_error(error: TrainerError) -> str:
    """Return the error of a trainer's own code with its line; empty if the machine may cause it.

    Files, packages, memory and GPUs of this machine may be others than those of the workers.
    """
    *_, last = error.traceback.strip().splitlines() or [""]
    kind = getattr(builtins, last.partition(":")[0], None)
    line = user_line(error.traceback)
    if last.startswith("dasktune.errors."):
        return last.partition(": ")[2]
    # A line of a frozen module, such as `os.environ`, is about this machine.
    is_bug = isinstance(kind, type) and issubclass(kind, _BUGS) and line and "<" not in line
    return f"{last} ({line})" if is_bug and not any(text in last for text in _OF_GPUS) else ""


_WAITING = {
    "all": "then trials begin",
    "resumes": "what goes on from a stored state waits for it",
}
"""The words for what waits for a check."""


class TrainerChecks:
    """The verdict on the trainer of a study, and the check that finds one.

    Attributes
    ----------
    device
        The kind of device on which the run trains; until a run sets it, the one that stages need.
    """

    def __init__(self, results: StudyResults, config: StudyConfig, current: CurrentRun) -> None:
        self._results, self._config, self._current = results, config, current
        self.device = device_of(results.options.needs)
        self._running: FirstCheck | None = None
        self._was_tried = False
        self._named_files: set[str] = set()

    @property
    def _name(self) -> str:
        return self._config.known_trainer.__qualname__

    @property
    def held(self) -> Literal["all", "resumes"]:
        """The stages that wait: on a GPU all, where one trainer more may not fit into memory."""
        return "all" if self.device == "cuda" else "resumes"

    def doing(self, progress: str = "") -> str:
        """Return the words for the check while it runs."""
        how = f": {progress}" if progress else ""
        return f"checking that {self._name} resumes exactly{how}; {_WAITING[self.held]}"

    @property
    def running(self) -> FirstCheck | None:
        """The check that runs, or whose result was not taken yet."""
        return self._running

    @property
    def _verdicts(self) -> Verdicts:
        return Verdicts(self._results.database, self._results.store.files)

    @property
    def _passed_on_cpu(self) -> bool:
        """Whether the trainer has passed a check on the CPU, which says little about GPUs."""
        known = self._verdicts.shared(self._results.row.spec["fingerprint"])
        on_cpu = binding_here(known, "cpu")
        return on_cpu is not None and on_cpu.ok

    def refuse_failed(self, allow_failed_check: bool) -> bool:
        """Refuse to merge trials of a trainer that has failed; return whether it is unchecked.

        Raises
        ------
        ConfigurationError
            If the verdict that decides is a failure, unless that is allowed.
        """
        results = self._results
        if not results.options.merge:
            return False
        fingerprint = results.row.spec["fingerprint"]
        known = self._verdicts.shared(fingerprint)
        if not files_of(known).keys() <= self._config.read_files.keys():
            self._config.recall_files(self._verdicts)  # of a check since the study was opened
        binding = binding_here(known, self.device)
        if binding is not None:
            if not binding.ok:
                self._refuse(binding.text, allow_failed_check)
            return False
        return not self._was_tried

    @contextmanager
    def beside(
        self, ahead: KnownTrials | NewTuner | None, step_seconds: float | None
    ) -> Iterator[None]:
        """Check the trainer meanwhile; a check that still runs then ends with the context.

        Without trials ahead nothing is checked. `step_seconds` is the user's limit for a step.
        """
        if ahead is None:
            yield
            return
        longest = FIRST_CHECK_STEP_SECONDS
        self._running = check = FirstCheck(
            self._config,
            seed=self._results.seed,
            device=self.device,
            ahead=ahead,
            step_seconds=longest if step_seconds is None else min(step_seconds, longest),
            current=self._current,
        )
        try:
            yield
        finally:
            check.cancel()
            if self._running is not None:
                self._keep_what_was_found(check)
                self._running = None

    def _keep_what_was_found(self, check: FirstCheck) -> None:
        """Record the findings of a check that ended early, because the run has ended."""
        with suppress(Exception):  # the run has its own result
            outcome = check.result()
            self._results.history.note_audited(check.steps)
            self.note_files(check)
            # A part of a check is enough to find a failure, not to pass.
            if isinstance(outcome, ResumeReport) and not (outcome.ok and outcome.is_cut_short):
                self._record(outcome, check)
                if not outcome.ok:  # nothing has rested on it so far
                    logger.warning("%s does not resume exactly: %s", self._name, outcome)

    def note_files(self, check: FirstCheck) -> None:
        """Record the files that the trainer reads, before there is a verdict."""
        if files := check.files:
            fingerprint = self._results.row.spec["fingerprint"]
            row = verdict(fingerprint, self.device, ok=True, text="no result", files=files)
            self._verdicts.record(replace(row, rule=NO_VERDICT))
            self._config.recall_files(self._verdicts)
            self._warn_of_files(files)

    def wait_for_files(self) -> None:
        """Wait at the end of a run until files are known: its states rest on their contents."""
        if self._running is None:
            return
        if self._running.wait_for_files():
            self.note_files(self._running)
        else:
            self._warn(
                "trained no step in its check: edits of files that it reads may go unnoticed"
            )

    def finish(self, allow_failed_check: bool, *, is_audited: bool) -> None:
        """Record the verdict of the check, which has ended.

        A warning says what is left to the audits of the run.

        Raises
        ------
        ConfigurationError
            If the trainer has failed or refuses a trial, unless that is allowed.
        StorageError
            If the verdict cannot be recorded.
        """
        check, self._running = self._running, None
        if check is None:
            return
        outcome = check.result()
        self._results.history.note_audited(check.steps)
        if not isinstance(outcome, ResumeReport):
            self.note_files(check)
        is_whole = isinstance(outcome, ResumeReport) and not (outcome.ok and outcome.is_cut_short)
        if check.is_cancelled and not is_whole:
            return
        self._was_tried = True
        match outcome:
            case NotChecked(reason=reason):
                how = "was checked on the CPU alone" if self._passed_on_cpu else "was not checked"
                self._warn_of_gap(f"{how}: {reason}", is_audited)
            case OwnCodeFailed(reason=reason):
                if not allow_failed_check:
                    self._was_tried = False
                    raise ConfigurationError(
                        f"{self._name} fails in each trial of its check: {reason}{_MAY_FAIL}"
                    )
            case Refused(reason=reason, remedy=remedy):
                if not allow_failed_check:
                    raise ConfigurationError(
                        f"{self._name} refuses a trial of this run: {reason}{remedy}"
                    )
            case ResumeReport():
                self._record(outcome, check)
                self._warn_of_files(outcome.files)
                if not outcome.ok:
                    self._refuse(str(outcome), allow_failed_check)
                elif outcome.is_cut_short:
                    missing = "; ".join(outcome.unchecked)
                    self._warn_of_gap(f"was checked in part; not checked: {missing}", is_audited)
                else:
                    logger.info("%s: %s", self._name, outcome)
            case _:
                assert_never(outcome)

    def _record(self, report: ResumeReport, check: FirstCheck) -> None:
        self._verdicts.record(
            verdict(
                self._results.row.spec["fingerprint"],
                self.device,
                ok=report.ok,
                text=str(report),
                splits=report.splits,
                steps=report.steps,
                files=check.with_edits(report.files),
            )
        )
        self._config.recall_files(self._verdicts)

    def _warn_of_files(self, files: Mapping[str, str]) -> None:
        """Log the files whose contents do not count, once: later studies know them."""
        trainer, taken = self._config.known_trainer, self._config.taken
        gaps = () if taken is None else taken.fingerprint.gaps
        uncovered = uncovered_files(files, trainer, gaps)
        if new := [each for each in uncovered if each not in self._named_files]:
            self._named_files.update(new)
            more = f" and {len(new) - _MOST_NAMED} more" if len(new) > _MOST_NAMED else ""
            logger.warning(
                "study %s: the code reads files whose contents do not count, since they are large "
                "or many: %s%s; count them by fingerprint_data: data_digest(path)",
                *(self._config.name, ", ".join(new[:_MOST_NAMED]), more),
            )

    def record_audit(self, failure: AuditFailure) -> None:
        """Record that an audit found a difference, for all studies that use this trainer.

        Raises
        ------
        StorageError
            If it cannot be recorded.
        """
        self._verdicts.record(
            verdict(
                self._results.row.spec["fingerprint"],
                self.device,
                ok=False,
                text=failure.text,
                steps=failure.steps,
                by_audit=True,
            )
        )

    def repeat_audits(self, failures: Iterable[AuditFailure]) -> None:
        """Record what audits of this study found, as far as a killed driver could not.

        Raises
        ------
        StorageError
            If it cannot be recorded.
        """
        known = {each.text for each in self._verdicts.of(self._results.row.spec["fingerprint"])}
        for failure in failures:
            if failure.text not in known:
                self.record_audit(failure)

    def _refuse(self, failure: str, allow_failed_check: bool) -> None:
        if not allow_failed_check:
            is_audit = failure.startswith(AUDIT_FAILED)
            reason = failure if is_audit else f"The check found: {failure}"
            raise ConfigurationError(
                f"{self._name} must resume exactly for its trials to be merged: mend it, or use "
                f"merge=False, or allow_failed_check=True. {reason}"
            )

    def _warn_of_gap(self, text: str, is_audited: bool) -> None:
        left = "That is left to the audits" if is_audited else "Nothing else tests that"
        self._warn(f"{text}. {left}; 'dasktune check' has no time limit")

    def _warn(self, text: str) -> None:
        logger.warning("%s %s", self._name, text)


def trials_ahead(
    results: StudyResults, tuner: Tuner, inputs: Mapping[str, object], limits: Limits
) -> KnownTrials | NewTuner:
    """Return the trials of a run: those of the study, or those that a new tuner registers first.

    The tuner is copied: it stays as it is.
    """
    records = {number: each for number, each in results.records.items() if each.was_trained_here}
    if records:
        requested = sum(steps_asked(records).values())
        return KnownTrials(trials=_first(records.values()), requested=requested)
    given = dict(inputs)
    if tuner.timed:
        given["directions"] = [each.value for each in results.objective.directions]
    return NewTuner(tuner=copy.deepcopy(tuner), inputs=given, most_steps=limits.steps)


def _first(trials: Iterable[Register | TrialRecord]) -> tuple[CheckedTrial, ...]:
    return tuple(
        CheckedTrial(sequences=trial.sequences, max_steps=trial.max_steps)
        for trial in islice((each for each in trials if not each.problem), _MOST_TRIALS)
    )
