"""The event log: the calls of a tuner with its decisions, and the replay of these calls.

A record is one call of a tuner, as JSON: its ``kind`` (`KINDS`), what it was called with,
the ``proposals`` of its sampler if there were any, and its ``decisions``. Giving the
records of a tuner to a new one of the same identity makes the same tuner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from dasktune._words import counted
from dasktune.algos.base import Tuner
from dasktune.algos.curves.curve import Prediction
from dasktune.algos.forest.priority import Priority
from dasktune.errors import DasktuneError, InternalError
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

Record = Mapping[str, Any]
"""One entry of the event log.

Those that an engine returns have `Decision` objects in place of their documents: `describe` makes a
document when it is written, so that those of 100,000 trials never exist at once.
"""

KINDS = (
    *("tuner", "ask", "tell", "fail", "retry", "widen", "predicted", "time", "clock", "snapshot"),
    *("retrain", "retrained", "assessed", "devices"),
)
"""``tuner`` begins it, with identity and inputs."""

NO_CALLS = ("snapshot", "clock", "retrain", "retrained", "devices")
"""Kinds of records that are no calls.

``snapshot`` holds the tuner's state, and ``clock`` how long a timed tuner has run when a run of it
ended. From ``retrain`` to ``retrained`` a trial is trained again to the step of its last report:
the tuner has decided by that report, and is not told the metrics of the new one. ``devices`` is the
choice of the devices of a trial, by their first steps: an input that is never chosen again, since
the row of the trial holds it, too.
"""


REOPENING = ("retry", "widen")
"""Kinds of records after which a tuner goes on that had ended."""


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


def extend_of(document: Mapping[str, Any]) -> Extend:
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


def recorded_report(record: Record, objective: Objective) -> Report:
    """Return the report that a record of kind ``tell`` holds."""
    now = Now.from_json(record["now"]) if "now" in record else None
    return report_of(record["trial"], record["step"], record["metrics"], objective, now)


def seconds_of(record: Record) -> float:
    """Return how long a timed tuner had run at a record; 0 where the record does not say."""
    seconds = record["now"]["seconds"] if "now" in record else record.get("seconds", 0.0)
    return float(seconds)


def prediction_of(record: Record) -> Prediction | None:
    """Return the prediction that a record of kind ``predicted`` holds."""
    document = record["prediction"]
    return None if document is None else Prediction.from_json(document)


def priority_of(record: Record) -> Priority | None:
    """Return the priority that a record of kind ``assessed`` holds."""
    document = record["priority"]
    return None if document is None else Priority.from_json(document)


def call(tuner: Tuner, record: Record, objective: Objective) -> list[Decision]:
    """Call a tuner as a record says; return what it decides now."""
    tuner.feed_proposals(record.get("proposals", ()))
    match record["kind"]:
        case "tuner":
            tuner.prepare(record.get("inputs", {}))
            return []
        case "ask":
            return tuner.ask(record["capacity"])
        case "tell":
            return tuner.tell(recorded_report(record, objective))
        case "predicted":
            return tuner.tell_prediction(record["trial"], prediction_of(record))
        case "assessed":
            return tuner.tell_priority(record["model"], priority_of(record))
        case "time":
            return tuner.tell_time(record["seconds"])
        case "fail":
            return tuner.tell_failure(record["trial"])
        case "retry":
            return tuner.tell_retry(record["trial"], record["step"])
        case "widen":
            return tuner.widen(record["trials"])
        case kind if kind in NO_CALLS:
            return []
        case kind:
            raise InternalError(f"the log holds a record of unknown kind {kind!r}")


def has_ended(records: Iterable[Record]) -> bool:
    """Return whether a tuner has ended and was not opened again since, by its records.

    It has not while a trial is trained again. The records may be all, or those from a snapshot on.
    """
    ended, retrained = False, set[int]()
    for record in records:
        match record:
            case {"kind": "snapshot", "state": state}:
                ended, retrained = state["finished"], {*state.get("retrained", ())}
            case {"kind": "retrain", "trial": trial}:
                retrained.add(trial)
            case {"kind": "retrained", "trial": trial}:
                retrained.discard(trial)
            case {"kind": kind, "decisions": decisions}:
                ended = any(decision["do"] == "finish" for decision in decisions) or (
                    ended and kind not in REOPENING
                )
                retrained -= {each["trial"] for each in decisions if each["do"] == "extend"}
    return ended and not retrained


def ending_of(records: Iterable[Record]) -> str:
    """Return the reason that a tuner gave for its end; empty without a reason or an end.

    The records are as for `has_ended`.
    """
    ending = ""
    for record in records:
        if record["kind"] == "snapshot":
            ending = record["state"].get("ending", "")
        else:
            ends = [decision for decision in record["decisions"] if decision["do"] == "finish"]
            if ends or record["kind"] in REOPENING:
                ending = ends[-1].get("reason", "") if ends else ""
    return ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of giving the records of a tuner to a new tuner.

    Attributes
    ----------
    calls
        How many calls were compared.
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


def replay(tuner: Tuner, records: Iterable[Record], objective: Objective) -> Replay:
    """Give recorded calls to a new tuner of the same identity; compare every decision."""
    calls = 0
    for record in records:
        calls += record["kind"] not in NO_CALLS
        try:
            difference = difference_of(record, call(tuner, record, objective))
        except DasktuneError as error:
            difference = f"{cause_of(record)}: {error}"
        if difference is not None:
            return Replay(calls=calls, difference=difference)
    return Replay(calls=calls, difference=None)


def difference_of(record: Record, decisions: Iterable[Decision]) -> str | None:
    """Return in words how decisions differ from the recorded ones; None if they are equal."""
    now, then = [describe(decision) for decision in decisions], record["decisions"]
    if record["kind"] == "snapshot" or now == then:
        return None
    at = next(
        (at for at, pair in enumerate(zip(now, then, strict=False)) if pair[0] != pair[1]),
        min(len(now), len(then)),
    )
    here, there = ([*some[at : at + 1], "nothing"][0] for some in (now, then))
    return f"after {cause_of(record)}, decision {at}: recorded {there}, now {here}"


def cause_of(record: Record) -> str:
    """Return in words what a tuner was called with."""
    match record["kind"]:
        case "tell":
            return f"the report of trial {record['trial']} at step {record['step']}"
        case "fail":
            return f"the failure of trial {record['trial']}"
        case "retry":
            return f"taking trial {record['trial']} back, which had failed"
        case "retrain":
            return f"training trial {record['trial']} again, alone, to step {record['step']}"
        case "retrained":
            return f"the end of training trial {record['trial']} again"
        case "predicted":
            return f"a prediction for trial {record['trial']}"
        case "assessed":
            return f"the priority of model {record['model']}"
        case "devices":
            chosen = devices_text(record["devices"])
            return f"the choice of devices for trial {record['trial']}: {chosen}"
        case "time":
            return f"the time, {record['seconds']:.6g} s"
        case "ask":
            return f"being asked for {counted(record['capacity'], 'worker')}"
        case "widen":
            return f"being widened to {counted(record['trials'], 'trial')}"
        case "tuner":
            return "the beginning"
        case kind:
            return f"a record of kind {kind!r}"


def in_words(record: Record) -> str:
    """Return a record as lines: what the tuner was called with, and each of its decisions.

    Examples
    --------
    >>> print(in_words({"kind": "ask", "capacity": 2, "decisions": [{"do": "stop", "trial": 7}]}))
    being asked for 2 workers
      stop trial 7
    """
    metrics = record.get("metrics", {})
    figures = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
    cause = f"{cause_of(record)}{f' ({figures})' if figures else ''}"
    return "\n  ".join([cause, *map(_decision_in_words, record["decisions"])])


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
