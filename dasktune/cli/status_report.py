"""What goes on in a study: its driver, what runs, what failed, what is waited for; in words."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

from dasktune.report.formats import count, duration
from dasktune.storage.database.database import FailedStages
from dasktune.storage.database.schema import RunRow, StageRow, TrialRow
from dasktune.storage.redaction import redacted
from dasktune.types import Step

SILENT_SECONDS = 60.0
"""A driver that gave no sign of life for so long is dead, or hangs."""

MOST_SHOWN = 10
"""Lines about one thing, unless all are asked for."""

LONGEST_MESSAGE = 300
"""Letters of an error's last line that are shown."""

SAME_SECONDS = 2.0
"""How much later than its run a process may seem to have begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The driver of the last run of a study.

    Parameters
    ----------
    state
        ``running``; ``silent``: its process is there, and gives no sign of life; ``dead``;
        ``ended``: the tuner has; ``limit``, ``interrupted`` or ``failed``.
    host, pid, run, version
        Where it runs, what its run is called, and its version of dasktune.
    began, seen
        When the run began, and the driver was last heard of (epoch seconds).
    is_gone
        Whether its process is known not to exist any more.
    message
        Which limit ended it, why its tuner did, or why it failed.
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
        """Whether it runs, as far as can be told."""
        return self.state in ("running", "silent")

    def in_words(self, now: float) -> str:
        """Return how it stands at a time (epoch seconds)."""
        where, ago = f"process {self.pid} on {_clean(self.host)}", _ago(now, self.seen)
        match self.state:
            case "running":
                began = duration(max(0.0, now - self.began))
                return f"{where} runs since {began}, its last sign was {ago}"
            case "silent":
                return (
                    f"{where} is there, but its last sign was {ago}: it hangs (in a callback?), or "
                    "waits for the database"
                )
            case "dead":
                gone = f"{where} is gone" if self.is_gone else where
                return (
                    f"dead: its last sign was {ago} ({gone}); run it again: it goes on from there"
                )
            case "failed":
                return f"failed {ago} ({where}): {_line(self.message)}"
            case "limit":
                return f"ended {ago} by a limit ({where}): {_line(self.message)}"
            case _:
                said = f": {_line(self.message)}" if self.message else ""
                return f"{self.state} {ago} ({where}){said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A stage that runs, or ran when its driver died.

    Parameters
    ----------
    trials
        Some of the trials that want it.
    start, stop, step
        Its steps, and how far it has come; None if that is not known.
    worker, host
        Where.
    seconds
        For how long.
    attempt, key
        Its name, and the key of the state that it ends with.
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
class Failure:
    """Something that failed.

    Parameters
    ----------
    trials
        Some of the trials that it concerns.
    step
        The last step before the one that failed; None if it is not known.
    message, traceback
        The last line of the error, and all of it as far as it is kept.
    tries
        How often it was tried; 0 if that is not known.
    last
        When the last try failed (epoch seconds); None if that is not known.
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
        facts = [f"tried {count(self.tries, 'time')}"] if self.tries else []
        facts += [] if self.last is None else [f"last {_ago(now, self.last)}"]
        facts += [] if self.is_final else ["not given up"]
        more = f" ({', '.join(facts)})" if facts else ""
        return f"{_trials(self.trials)}{after}: {_line(self.message)}{more}"


def driver_of(row: RunRow, now: float) -> Driver:
    """Return the driver of a run: whether it lives is told by its last sign, and its process."""
    state, is_gone = row.how, False
    if row.ended is None:
        is_here = row.host == socket.gethostname()
        is_gone = is_here and not _is_there(row.pid, row.began)
        if is_gone:
            state = "dead"
        elif now - row.seen > SILENT_SECONDS:
            state = "silent" if is_here else "dead"
    return Driver(
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


def running_of(row: RunRow, stages: Iterable[StageRow], at: float) -> list[Running]:
    """Return the stages of a run that were running at a time, the longest first."""
    found = [
        Running(
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
    return sorted(found, key=lambda one: (-one.seconds, one.attempt))


def failures_of(trials: Iterable[TrialRow], stages: Sequence[FailedStages]) -> list[Failure]:
    """Return what failed, alike things together: trials first, then what is tried again."""
    by_message: dict[str, list[FailedStages]] = {}
    for stage in stages:
        by_message.setdefault(stage.message, []).append(stage)
    found: dict[tuple[str, Step | None], Failure] = {}
    told: set[tuple[str, Step]] = set()
    for trial in trials:
        message = redacted(str(trial.record.get("message", "")))
        alike = by_message.get(message, [])
        # A stage names only some of its trials.
        mine = [one for one in alike if trial.number in one.trials] or alike
        steps = {one.step for one in mine}
        step = mine[0].step if len(steps) == 1 else None
        told |= {(message, one) for one in steps}
        before = found.get((message, step))
        found[message, step] = Failure(
            trials=(*(before.trials if before else ()), trial.number),
            step=step,
            message=message,
            traceback=redacted(str(trial.record.get("traceback", ""))),
            tries=sum(one.count for one in alike if one.step == step),
            last=max((one.last for one in mine), default=None),
            is_final=True,
        )
    again = (one for one in stages if (one.message, one.step) not in told)
    return [*found.values(), *map(_tried_again, again)]


def _tried_again(stage: FailedStages) -> Failure:
    return Failure(
        trials=tuple(stage.trials),
        step=stage.step,
        message=stage.message,
        traceback="",
        tries=stage.count,
        last=stage.last,
        is_final=False,
    )


def waits_text(waits: Iterable[Mapping[str, object]], now: float) -> Iterator[str]:
    """Yield in words what is waited for."""
    for wait in waits:
        since, text = wait.get("since"), _line(str(wait.get("text", "")))
        is_known = isinstance(since, int | float)
        yield f"{text}, since {duration(max(0.0, now - float(str(since))))}" if is_known else text


def folded(lines: Sequence[str], *, shows_all: bool, more: int = 0) -> list[str]:
    """Return lines, of many only the first ones and how many more there are."""
    shown = list(lines) if shows_all else list(lines[:MOST_SHOWN])
    left = len(lines) - len(shown) + more
    return [*shown, f"and {left:,} more"] if left > 0 else shown


def _is_there(pid: int, began: float) -> bool:
    """Whether the process of a run exists: one that began later has only its number."""
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
    """Return a text without what moves a cursor or changes colours."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)
