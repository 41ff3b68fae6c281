"""The event log: decisions as documents, records in words, and the replay of a tuner's calls.

Giving the records of a tuner (`dasktune._engine.tuner_records`) to a new one of the same identity
makes the same tuner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, assert_never

from dasktune._engine.tuner_records import (
    Call,
    Cause,
    ClockNoted,
    DevicesChosen,
    Document,
    FailureTold,
    LoggedRecord,
    PredictionTold,
    PriorityTold,
    ReportTold,
    RetrainingBegun,
    RetrainingEnded,
    SnapshotTaken,
    TimeTold,
    TrialRetried,
    TunerBegun,
    TunerWidened,
    WorkAsked,
)
from dasktune._words import counted
from dasktune.algos.base import Tuner
from dasktune.errors import DasktuneError
from dasktune.graph.devices import devices_text
from dasktune.types import (
    Assess,
    Decision,
    Extend,
    Finish,
    Metrics,
    Now,
    Objective,
    Predict,
    Rank,
    Register,
    Report,
    Step,
    Stop,
)


def describe(decision: Decision) -> dict[str, object]:
    """Return a decision as a JSON document; of a trial's sequences only a digest."""
    match decision:
        case Register():
            document = {"do": "register", "trial": decision.trial, "max_steps": decision.max_steps}
            document |= {"sequences": _digest(decision)}
            document |= {} if decision.needs is None else {"needs": decision.needs.to_json()}
            return {**document, "seed": decision.seed} if decision.seed else document
        case Extend():
            document = {"do": "extend", "trial": decision.trial, "until": decision.until}
            document |= {"priority": decision.priority}
            return {**document, "reports": list(decision.reports)} if decision.reports else document
        case Stop():
            return {"do": "stop", "trial": decision.trial}
        case Rank():
            return {"do": "rank", "trial": decision.trial, "priority": decision.priority}
        case Predict():
            return {"do": "predict", "trial": decision.trial}
        case Assess():
            return {"do": "assess", "model": decision.model}
        case Finish():
            return {"do": "finish", **({"reason": decision.reason} if decision.reason else {})}
        case _:
            # `json` calls this for each object that it cannot write; the words are those of `json`.
            raise TypeError(f"Object of type {type(decision).__name__} is not JSON serializable")


def _digest(decision: Register) -> str:
    """Return a digest of a trial's sequences; other hyper-parameters give another digest."""
    texts = sorted(f"{name}={sequence!r}" for name, sequence in decision.sequences.items())
    return blake2b("\n".join(texts).encode(errors="surrogatepass"), digest_size=8).hexdigest()


def extend_of(document: Document) -> Extend:
    """Return the `Extend` that was described."""
    return Extend(
        trial=document["trial"],
        until=document["until"],
        priority=document["priority"],
        reports=tuple(document.get("reports", ())),
    )


def report_of(
    trial: int, step: Step, metrics: Metrics, objective: Objective, now: Now | None = None
) -> Report:
    """Return a report with its losses."""
    losses = objective.losses(metrics)
    return Report(trial=trial, step=step, metrics=metrics, losses=losses, now=now)


def seconds_of(cause: Cause) -> float:
    """Return how long a timed tuner had run at a cause; 0 where the cause does not say."""
    match cause:
        case ReportTold(now=Now(seconds=seconds)) | PredictionTold(seconds=seconds):
            return float(seconds)
        case TimeTold(seconds=seconds) | ClockNoted(seconds=seconds):
            return float(seconds)
        case _:
            return 0.0


def call(tuner: Tuner, record: LoggedRecord, objective: Objective) -> list[Decision]:
    """Call a tuner as a record says; return what it decides now."""
    tuner.feed_proposals(record.proposals)
    match record.cause:
        case ReportTold(trial=trial, step=step, metrics=metrics, now=now):
            return tuner.tell(report_of(trial, step, metrics, objective, now))
        case WorkAsked(capacity=capacity):
            return tuner.ask(capacity)
        case PredictionTold(trial=trial, prediction=prediction):
            return tuner.tell_prediction(trial, prediction)
        case PriorityTold(model=model, priority=priority):
            return tuner.tell_priority(model, priority)
        case TimeTold(seconds=seconds):
            return tuner.tell_time(seconds)
        case FailureTold(trial=trial):
            return tuner.tell_failure(trial)
        case TrialRetried(trial=trial, step=step):
            return tuner.tell_retry(trial, step)
        case TunerWidened(trials=trials):
            return tuner.widen(trials)
        case TunerBegun(inputs=inputs):
            tuner.prepare(inputs)
            return []
        case ClockNoted() | SnapshotTaken() | RetrainingBegun() | RetrainingEnded():
            return []
        case DevicesChosen():
            return []
        case _:
            assert_never(record.cause)


def has_ended(records: Iterable[LoggedRecord]) -> bool:
    """Return whether a tuner has ended and was not opened again since, by its records.

    It has not while a trial is trained again. The records may be all, or those from a snapshot on.
    """
    ended, retrained = False, set[int]()
    for record in records:
        match record.cause:
            case SnapshotTaken(state=state):
                ended, retrained = state["finished"], {*state.get("retrained", ())}
            case RetrainingBegun(trial=trial):
                retrained.add(trial)
            case RetrainingEnded(trial=trial):
                retrained.discard(trial)
            case _:
                decisions = record.decisions
                ended = any(decision["do"] == "finish" for decision in decisions) or (
                    ended and not _reopens(record.cause)
                )
                retrained -= {each["trial"] for each in decisions if each["do"] == "extend"}
    return ended and not retrained


def ending_of(records: Iterable[LoggedRecord]) -> str:
    """Return the reason that a tuner gave for its end; empty without a reason or an end.

    The records are as for `has_ended`.
    """
    ending = ""
    for record in records:
        if isinstance(record.cause, SnapshotTaken):
            ending = record.cause.state.get("ending", "")
        else:
            ends = [decision for decision in record.decisions if decision["do"] == "finish"]
            if ends or _reopens(record.cause):
                ending = ends[-1].get("reason", "") if ends else ""
    return ending


def _reopens(cause: Cause) -> bool:
    """Whether a tuner that had ended goes on after this."""
    return isinstance(cause, TrialRetried | TunerWidened)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of giving the records of a tuner to a new tuner.

    Attributes
    ----------
    difference
        The first call that gave other decisions, in words; None if there is none.
    """

    calls: int
    difference: str | None

    @property
    def identical(self) -> bool:
        """Whether every decision came out as recorded."""
        return self.difference is None

    def __str__(self) -> str:
        if self.difference is None:
            return f"identical: {self.calls:,} calls of the tuner gave the recorded decisions"
        return f"different at call {self.calls:,}: {self.difference}"


def replay(tuner: Tuner, records: Iterable[LoggedRecord], objective: Objective) -> Replay:
    """Give recorded calls to a new tuner of the same identity; compare every decision."""
    calls = 0
    for record in records:
        calls += isinstance(record.cause, Call)
        try:
            difference = difference_of(record, call(tuner, record, objective))
        except DasktuneError as error:
            difference = f"{cause_in_words(record.cause)}: {error}"
        if difference is not None:
            return Replay(calls=calls, difference=difference)
    return Replay(calls=calls, difference=None)


def difference_of(record: LoggedRecord, decisions: Iterable[Decision]) -> str | None:
    """Return in words how decisions differ from the recorded ones; None if they are equal."""
    now, then = [describe(decision) for decision in decisions], [*record.decisions]
    if isinstance(record.cause, SnapshotTaken) or now == then:
        return None
    at = next(
        (at for at, pair in enumerate(zip(now, then, strict=False)) if pair[0] != pair[1]),
        min(len(now), len(then)),
    )
    here, there = ([*some[at : at + 1], "nothing"][0] for some in (now, then))
    return f"after {cause_in_words(record.cause)}, decision {at}: recorded {there}, now {here}"


def cause_in_words(cause: Cause) -> str:
    """Return in words what a tuner was called with, or what else a record holds."""
    match cause:
        case ReportTold(trial=trial, step=step):
            return f"the report of trial {trial} at step {step}"
        case FailureTold(trial=trial):
            return f"the failure of trial {trial}"
        case TrialRetried(trial=trial):
            return f"taking trial {trial} back, which had failed"
        case RetrainingBegun(trial=trial, step=step):
            return f"training trial {trial} again, alone, to step {step}"
        case RetrainingEnded(trial=trial):
            return f"the end of training trial {trial} again"
        case PredictionTold(trial=trial):
            return f"a prediction for trial {trial}"
        case PriorityTold(model=model):
            return f"the priority of model {model}"
        case DevicesChosen(trial=trial, devices=devices):
            return f"the choice of devices for trial {trial}: {devices_text(devices)}"
        case TimeTold(seconds=seconds):
            return f"the time, {seconds:.6g} s"
        case WorkAsked(capacity=capacity):
            return f"being asked for {counted(capacity, 'worker')}"
        case TunerWidened(trials=trials):
            return f"being widened to {counted(trials, 'trial')}"
        case TunerBegun():
            return "the beginning"
        case ClockNoted() | SnapshotTaken():
            return f"a record of kind {cause.kind!r}"
        case _:
            assert_never(cause)


def in_words(record: LoggedRecord) -> str:
    """Return a record as lines: what the tuner was called with, and each of its decisions.

    Examples
    --------
    >>> from dasktune._engine.tuner_records import Record, WorkAsked
    >>> asked = WorkAsked(capacity=2)
    >>> print(in_words(Record(cause=asked, place=0, decisions=({"do": "stop", "trial": 7},))))
    being asked for 2 workers
      stop trial 7
    """
    words, metrics = cause_in_words(record.cause), None
    if isinstance(record.cause, ReportTold | RetrainingEnded):
        metrics = record.cause.metrics
    figures = ", ".join(f"{name} {value:.6g}" for name, value in (metrics or {}).items())
    head = f"{words} ({figures})" if figures else words
    return "\n  ".join([head, *map(_decision_in_words, record.decisions)])


def _decision_in_words(decision: Mapping[str, Any]) -> str:
    match decision:
        case {"do": "extend", "trial": trial, "until": until, "priority": priority}:
            rank = f", priority {priority:g}" if priority else ""
            looks = decision.get("reports", ())
            on_the_way = f", with looks at {', '.join(map(str, looks))}" if looks else ""
            return f"extend trial {trial} to step {until}{on_the_way}{rank}"
        case {"do": "rank", "trial": trial, "priority": priority}:
            return f"rank trial {trial} at {priority:g}"
        case {"do": "assess", "model": model}:
            return f"assess model {model}"
        case {"do": done, "trial": trial}:
            return f"{done} trial {trial}"
        case _:
            return str(decision["do"])
