"""The measurement of a kind: a merged study of 12 trials, against each trial alone."""

from __future__ import annotations

import logging
import os
import re
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from distributed import Client

import dasktune as dt
from dasktune._driver.retention.kept_ends import SWITCH as OMIT_SWITCH
from dasktune._results.withdrawn import merged_results
from dasktune._study.study import Study
from dasktune.errors import DasktuneError
from dasktune.sequences import Constant, MultiStep, Sequence
from dasktune.trainer.check_switch import SWITCH
from dasktune.trainer.code import TrainerCode, pack, unpack
from dasktune.trainer.given import as_trainer
from dasktune.trainer.lifecycle import run_alone
from dasktune.types import Sequences, Step, TrialState
from tests.trainer.resume_kinds.kind import Expected, Kind, found_at
from tests.trainer.resume_kinds.processes import (
    LimitError,
    call_forked,
    each_in_a_fork,
    forked_first_checks,
    own_folder,
)

STEPS: Step = 100
SECONDS = 60.0
Drops = tuple[tuple[int, ...], ...]

DROPS: Drops = ((15,), (30,), (30, 60), (50,), (90,))
"""Where the learning rate of a trial drops, in percent of its steps."""

Metrics = Mapping[Step, Mapping[str, float]]

UNRELATED = (
    *("was checked in part", "was not checked", "was lost", "is paused"),
    "the fingerprint cannot tell",
)
"""Texts of warnings that name no missing part of a state."""


class Outcome(Enum):
    """The outcome of a merged study."""

    EXACT = "exact"
    REFUSED = "refused"
    STOPPED = "stopped"
    AUDITED = "audited"
    SILENT = "SILENT"
    BROKEN = "broken"


NAMED = {Outcome.EXACT, Outcome.REFUSED, Outcome.STOPPED}
"""Outcomes without a wrong number: an exact one is better than one that names what is missing."""

ALLOWED = {
    Expected.EXACT: {Outcome.EXACT},
    Expected.REFUSED: NAMED,
    Expected.STOPPED: NAMED,
    Expected.REFUSED_OR_STOPPED: NAMED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTrial:
    """One trial of the merged study, as its driver sees it."""

    number: int
    state: str
    error: str
    sequences: Sequences
    metrics: Metrics
    is_marked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStudy:
    """A merged study as its driver sees it.

    Parameters
    ----------
    refusal
        The error with which `optimize` ended; empty if it ended well.
    warnings
        The warnings that name something.
    differing
        Number of audits that found a difference.
    """

    refusal: str
    warnings: tuple[str, ...]
    trials: tuple[SeenTrial, ...]
    differing: int
    resumes: int
    executed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The outcome of one kind.

    Parameters
    ----------
    named
        The line of the first message that names the culprit, or should.
    wrong
        Trials with a metric that is not that of the trial alone.
    unmarked
        Those among them that are not marked as withdrawn.
    """

    name: str
    theme: str
    summary: str
    expected: str
    culprit: str | None
    outcome: str
    named: str
    message: str
    is_expected: bool
    is_culprit_right: bool | None
    is_false_alarm: bool
    wrong: tuple[int, ...]
    unmarked: tuple[int, ...]
    resumes: int
    executed: int
    steps: Step
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rates(steps: Step, all_drops: Drops = DROPS) -> list[Sequence]:
    """Return the learning rates: one that is constant, and some that drop, late or twice."""
    dropping = [
        MultiStep(0.1, milestones=[max(1, steps * part // 100) for part in drops], gamma=0.5)
        for drops in all_drops
    ]
    return [Constant(0.1), *dropping]


def measured(
    kind: Kind,
    address: str,
    *,
    steps: Step = STEPS,
    drops: Drops = DROPS,
    seconds: float = SECONDS,
) -> Row:
    """Return the outcome of a kind on the cluster at an address.

    A kind that hangs, or crashes its driver, is broken; the cluster may need a restart then. The
    limit is that of the study, and again that of the lone trials.
    """
    begun = time.monotonic()
    try:
        study: SeenStudy = call_forked(
            see_study, kind.place, address, steps, drops, seconds=seconds
        )
        asked = [trial.sequences for trial in study.trials]
        lone = call_forked(lone_metrics, kind.place, asked, steps, seconds=seconds) if asked else []
    except LimitError as error:
        return _row(kind, Outcome.BROKEN, str(error), steps=steps, begun=begun)
    wrong = tuple(
        trial.number
        for trial, alone in zip(study.trials, lone, strict=True)
        if not is_right(trial, alone, steps)
    )
    marked = {trial.number for trial in study.trials if trial.is_marked}
    unmarked = tuple(number for number in wrong if number not in marked)
    outcome, message = judged(study, wrong, unmarked)
    return _row(
        kind,
        outcome,
        message,
        wrong=wrong,
        unmarked=unmarked,
        study=study,
        steps=steps,
        begun=begun,
    )


def judged(
    study: SeenStudy, wrong: tuple[int, ...], unmarked: tuple[int, ...]
) -> tuple[Outcome, str]:
    """Return the outcome of a study, and the message that names its reason."""
    errors = [trial.error for trial in study.trials if trial.error]
    messages = [text for text in (study.refusal, *errors, *study.warnings) if text]
    message = messages[0] if messages else ""
    if unmarked:
        return Outcome.SILENT, message
    if wrong or study.differing:
        return Outcome.AUDITED, message
    if study.refusal:
        return Outcome.REFUSED, message
    return (Outcome.STOPPED if messages else Outcome.EXACT), message


def is_right(trial: SeenTrial, alone: Metrics | str, steps: Step) -> bool:
    """Return whether all metrics of a trial are those of the trial alone, bit for bit."""
    if isinstance(alone, str):  # the trial fails alone, too
        return trial.state != TrialState.COMPLETE.name
    if trial.state == TrialState.COMPLETE.name and len(trial.metrics) != steps:
        return False
    return all(_bits(values) == _bits(alone[step]) for step, values in trial.metrics.items())


def _bits(values: Mapping[str, float]) -> dict[str, bytes]:
    return {name: struct.pack("<d", value) for name, value in values.items()}


def first_named(message: str) -> str:
    """Return the line of a message that names the first difference.

    Examples
    --------
    >>> first_named("resume check failed: 7 steps\\n- trainer.a: differs\\n- trainer.b: differs")
    'trainer.a: differs'
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if message.startswith("Traceback"):
        lines = lines[_last_raised(lines) :]
    listed = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    if lines and lines[0].endswith(":"):
        lines = lines[1:]
    return (listed or lines or [""])[0]


def _last_raised(lines: list[str]) -> int:
    """Return the index of the line of a traceback that names the error."""
    errors = [i for i, line in enumerate(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return errors[-1] if errors else len(lines) - 1


def _row(
    kind: Kind,
    outcome: Outcome,
    message: str,
    *,
    steps: Step,
    begun: float,
    wrong: tuple[int, ...] = (),
    unmarked: tuple[int, ...] = (),
    study: SeenStudy | None = None,
) -> Row:
    named = first_named(message)
    is_named = outcome in (Outcome.REFUSED, Outcome.STOPPED, Outcome.AUDITED)
    return Row(
        name=kind.name,
        theme=kind.theme,
        summary=kind.summary,
        expected=kind.expected.value,
        culprit=kind.culprit,
        outcome=outcome.value,
        named=named[:200],
        message=message[:2000],
        is_expected=outcome in ALLOWED[kind.expected],
        is_culprit_right=kind.culprit in named if kind.culprit and is_named else None,
        is_false_alarm=kind.is_correct and outcome is not Outcome.EXACT,
        wrong=wrong,
        unmarked=unmarked,
        resumes=study.resumes if study else 0,
        executed=study.executed if study else 0,
        steps=steps,
        seconds=round(time.monotonic() - begun, 2),
    )


# ------------------------------------------------------------------------- in forked processes


def see_study(place: tuple[str, str], address: str, steps: Step, drops: Drops) -> SeenStudy:
    """Run the merged study of a kind, and return it as its driver sees it."""
    # States of short trials are stored here, as those of long trials are.
    os.environ.update({SWITCH: "on", OMIT_SWITCH: "off"})
    trainer, name = found_at(place), place[1]
    refusal = ""
    with (
        own_folder() as folder,
        forked_first_checks(),
        _warnings() as warnings,
        Client(address, set_as_default=False) as client,
    ):
        try:
            made = dt.create_study(trainer, name=name, metric="loss", storage=folder / "store")
        except DasktuneError as error:
            return SeenStudy(
                refusal=str(error), warnings=(), trials=(), differing=0, resumes=0, executed=0
            )
        with closing(made) as study:
            space = dt.Space(lr=rates(steps, drops), mode=["a", "b"])
            tuner = dt.algos.Grid(space, max_steps=steps)
            try:
                study.optimize(tuner, client=client, progress=False, last_line=False)
            except DasktuneError as error:
                refusal = str(error) or type(error).__name__
            return _seen(study, refusal, warnings)


def _seen(study: Study, refusal: str, warnings: list[str]) -> SeenStudy:
    summary = study.summary()
    marked = set(summary["withdrawn"]["trials"])
    if marked or summary["withdrawn"]["others"]:
        records = study.results.records.values()
        marked |= set(merged_results([each for each in records if each.was_trained_here]))
    trials = tuple(
        SeenTrial(
            number=trial.number,
            state=trial.state.name,
            error=str(trial.error or ""),
            sequences=trial.sequences,
            metrics=trial.metrics,
            is_marked=trial.number in marked,
        )
        for trial in study.trials
    )
    return SeenStudy(
        refusal=refusal,
        warnings=tuple(text for text in warnings if not any(part in text for part in UNRELATED)),
        trials=trials,
        differing=summary["audits"]["differing"],
        resumes=summary["audits"]["resumes"],
        executed=summary["steps_executed"],
    )


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Give the list of warnings that dasktune logs meanwhile."""
    texts: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    handler, logger = Listening(logging.WARNING), logging.getLogger("dasktune")
    logger.addHandler(handler)
    try:
        yield texts
    finally:
        logger.removeHandler(handler)


def lone_metrics(
    place: tuple[str, str], trials: list[Sequences], steps: Step
) -> list[Metrics | str]:
    """Return the metrics of each trial alone, in a process of its own; an error as its text."""
    code = pack(as_trainer(found_at(place)))
    return each_in_a_fork(_Alone(code, steps), trials)


@dataclass(frozen=True, slots=True)
class _Alone:
    """Trains a trial alone."""

    code: TrainerCode
    steps: Step

    def __call__(self, sequences: Sequences) -> Metrics:
        with own_folder():
            return run_alone(unpack(self.code), sequences, self.steps).metrics
