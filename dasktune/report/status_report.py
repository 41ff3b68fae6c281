"""The parts of a study's status in words: its driver, running stages, failures and waits."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psutil

from dasktune._driver.run_status import Wait
from dasktune._engine.timeouts import NO_HEARTBEAT_SECONDS
from dasktune._words import counted
from dasktune.report.formats import duration
from dasktune.storage.database.database import FailedStages
from dasktune.storage.database.rows import RunRow, StageRow, TrialRow
from dasktune.storage.redaction import redacted
from dasktune.types import Step

MOST_SHOWN = 10
"""Lines of one kind, unless the user wants all."""

LONGEST_MESSAGE = 300
"""Characters that are shown of an error's last line."""

SAME_SECONDS = 2.0
"""How much later than its run a process may seem to have begun: clocks differ in rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatus:
    """The driver of the last run of a study.

    Parameters
    ----------
    state
        ``running``; ``silent``: its process exists, without heartbeats; ``dead``; ``ended``: the
        tuner has ended; ``limit``, ``interrupted`` or ``failed``.
    host, pid, run, version
        Its host and process, the name of its run, and its version of dasktune.
    began, seen
        When the run began, and when its last heartbeat was (epoch seconds).
    is_gone
        Whether its process is known to have ended.
    message
        The limit that ended it, the reason of its tuner, or the error.
    """

    state: str
    host: str
    pid: int
    run: str
    version: str
    began: float
    seen: float
    is_gone: bool
    message: str

    @property
    def is_alive(self) -> bool:
        """Whether it runs, as far as is known."""
        return self.state in ("running", "silent")

    def in_words(self, now: float) -> str:
        """Return its state at a time (epoch seconds) in words."""
        where, ago = f"process {self.pid} on {_clean(self.host)}", _ago(now, self.seen)
        match self.state:
            case "running":
                began = duration(max(0.0, now - self.began))
                return f"{where} runs since {began}, its last heartbeat was {ago}"
            case "silent":
                return (
                    f"{where} exists, but its last heartbeat was {ago}: it hangs (in a callback?), "
                    "or waits for the database"
                )
            case "dead":
                gone = f"{where} is gone" if self.is_gone else where
                text = f"dead: its last heartbeat was {ago} ({gone})"
                return f"{text}; run it again: it goes on from there"
            case "failed":
                return f"failed {ago} ({where}): {_line(self.message)}"
            case "limit":
                return f"ended {ago} by a limit ({where}): {_line(self.message)}"
            case _:
                reason = f": {_line(self.message)}" if self.message else ""
                return f"{self.state} {ago} ({where}){reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStage:
    """A stage that runs, or ran when its driver died.

    Parameters
    ----------
    trials
        Some of the trials that want it.
    start, stop, step
        Its first and last step, and its position; None if that is not known.
    worker, host
        The address of its worker, and the host in it.
    attempt, key
        Its attempt, and the key of the state at its end.
    """

    trials: Sequence[int]
    start: Step
    stop: Step
    step: Step | None
    worker: str
    host: str
    seconds: float
    attempt: str
    key: str

    def __str__(self) -> str:
        at = "" if self.step is None else f", at {self.step:,}"
        return (
            f"{_trials(self.trials)}: steps {self.start:,} to {self.stop:,}{at}, on "
            f"{_clean(self.worker)} for {duration(self.seconds)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedFailure:
    """A failure of trials or of a stage.

    Parameters
    ----------
    trials
        Some of the trials that it concerns.
    step
        The last step before the one that failed; None if it is not known.
    message, traceback
        The last line of the error, and its traceback as far as it is kept.
    tries
        Number of failed attempts; 0 if that is not known.
    last
        When the last attempt failed (epoch seconds); None if that is not known.
    is_final
        Whether its trials have failed; otherwise it is, or was, tried again.
    """

    trials: Sequence[int]
    step: Step | None
    message: str
    traceback: str
    tries: int
    last: float | None
    is_final: bool

    def in_words(self, now: float) -> str:
        """Return it in a line, at a time (epoch seconds)."""
        after = "" if self.step is None else f" after step {self.step:,}"
        facts = [f"tried {counted(self.tries, 'time')}"] if self.tries else []
        facts += [] if self.last is None else [f"last {_ago(now, self.last)}"]
        facts += [] if self.is_final else ["not given up"]
        more = f" ({', '.join(facts)})" if facts else ""
        return f"{_trials(self.trials)}{after}: {_line(self.message)}{more}"


def is_driven(study: Any) -> bool:
    """Return whether a driver runs the study, as far as is known."""
    row = study.database.study(study.name)
    run = None if row is None else study.database.last_run(row.id)
    return run is not None and driver_of(run, time.time()).is_alive


def driver_of(row: RunRow, now: float) -> DriverStatus:
    """Return the driver of a run; its last heartbeat and its process show whether it is alive."""
    state, is_gone = row.how, False
    if row.ended is None:
        is_here = row.host == socket.gethostname()
        is_gone = is_here and not _is_there(row.pid, row.began)
        if is_gone:
            state = "dead"
        elif now - row.seen > NO_HEARTBEAT_SECONDS:
            state = "silent" if is_here else "dead"
    return DriverStatus(
        state=state,
        host=row.host,
        pid=row.pid,
        run=row.run,
        version=row.version,
        began=row.began,
        seen=row.seen,
        is_gone=is_gone,
        message=row.message,
    )


def running_of(row: RunRow, stages: Iterable[StageRow], at: float) -> list[RunningStage]:
    """Return the stages of a run that were running at a time, the longest first."""
    running = [
        RunningStage(
            trials=tuple(stage.trials),
            start=stage.start,
            stop=stage.stop,
            step=row.positions.get(stage.attempt),
            worker=stage.worker,
            host=urlsplit(stage.worker).hostname or "",
            seconds=max(0.0, at - stage.started),
            attempt=stage.attempt,
            key=stage.key,
        )
        for stage in stages
    ]
    return sorted(running, key=lambda stage: (-stage.seconds, stage.attempt))


def failures_of(
    trials: Iterable[TrialRow], stages: Sequence[FailedStages]
) -> list[ReportedFailure]:
    """Return failures, equal ones together: failed trials first, then stages that are retried."""
    by_message: dict[str, list[FailedStages]] = {}
    for stage in stages:
        by_message.setdefault(stage.message, []).append(stage)
    failures: dict[tuple[str, Step | None], ReportedFailure] = {}
    covered: set[tuple[str, Step]] = set()
    for trial in trials:
        message = redacted(str(trial.record.get("message", "")))
        alike = by_message.get(message, [])
        # A stage names only some of its trials.
        own = [stage for stage in alike if trial.number in stage.trials] or alike
        steps = {stage.step for stage in own}
        step = own[0].step if len(steps) == 1 else None
        covered |= {(message, at) for at in steps}
        before = failures.get((message, step))
        failures[message, step] = ReportedFailure(
            trials=(*(before.trials if before else ()), trial.number),
            step=step,
            message=message,
            traceback=redacted(str(trial.record.get("traceback", ""))),
            tries=sum(stage.count for stage in alike if stage.step == step),
            last=max((stage.last for stage in own), default=None),
            is_final=True,
        )
    again = (stage for stage in stages if (stage.message, stage.step) not in covered)
    return [*failures.values(), *map(_retried, again)]


def _retried(stage: FailedStages) -> ReportedFailure:
    return ReportedFailure(
        trials=tuple(stage.trials),
        step=stage.step,
        message=stage.message,
        traceback="",
        tries=stage.count,
        last=stage.last,
        is_final=False,
    )


def waits_text(waits: Iterable[Wait], now: float) -> Iterator[str]:
    """Yield the reasons for waiting, each with its time."""
    for wait in waits:
        text = _line(wait.text)
        if wait.since is not None:
            text += f", since {duration(max(0.0, now - wait.since))}"
        yield text


def folded(lines: Sequence[str], *, shows_all: bool, more: int = 0) -> list[str]:
    """Return lines; of many only the first ones, and how many more there are."""
    shown = list(lines) if shows_all else list(lines[:MOST_SHOWN])
    left = len(lines) - len(shown) + more
    return [*shown, f"and {left:,} more"] if left > 0 else shown


def _is_there(pid: int, began: float) -> bool:
    """Return whether the process of a run exists; a younger process has only the same number."""
    try:
        return bool(psutil.Process(pid).create_time() <= began + SAME_SECONDS)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _ago(now: float, then: float) -> str:
    return f"{duration(max(0.0, now - then))} ago"


def _trials(numbers: Sequence[int]) -> str:
    if not numbers:
        return "trials not known"
    shown = ", ".join(map(str, numbers[:MOST_SHOWN]))
    more = f" and {len(numbers) - MOST_SHOWN:,} more" if len(numbers) > MOST_SHOWN else ""
    return f"trial{'s' if len(numbers) > 1 else ''} {shown}{more}"


def _line(text: str) -> str:
    """Return a text as one line that a terminal can show."""
    line = _clean(" ".join(text.split()))
    return line if len(line) <= LONGEST_MESSAGE else f"{line[: LONGEST_MESSAGE - 1]}…"


def _clean(text: str) -> str:
    """Return a text without control characters, which could move a cursor or change colours."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
