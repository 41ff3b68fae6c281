"""The calls of a tuner with its decisions, and the error that lists them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dasktune.algos.base import Proposal, Tuner
from dasktune.algos.curves.curve import Prediction, Question
from dasktune.algos.forest.priority import Priority, PriorityQuestion
from dasktune.types import Assess, Decision, Extend, Finish, Predict, Rank, Register, Report, Stop

_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCall:
    """A call of `Tuner.ask` with this number of idle workers."""

    capacity: int

    def __str__(self) -> str:
        return f"ask({self.capacity})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TellCall:
    """A call of `Tuner.tell` with this report."""

    report: Report

    def __str__(self) -> str:
        report = self.report
        return f"tell(trial {report.trial}, step {report.step}, loss {report.loss:g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailCall:
    """A call of `Tuner.tell_failure` for this trial."""

    trial: int

    def __str__(self) -> str:
        return f"tell_failure(trial {self.trial})"


@dataclass(frozen=True, slots=True, kw_only=True)
class WidenCall:
    """A call of `Tuner.widen` to this number of trials."""

    trials: int

    def __str__(self) -> str:
        return f"widen({self.trials})"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCall:
    """A call of `Tuner.tell_prediction` for this trial; None if the prediction failed."""

    trial: int
    prediction: Prediction | None

    def __str__(self) -> str:
        if self.prediction is None:
            return f"tell_prediction(trial {self.trial}, None)"
        median = self.prediction.medians[-1]
        after = f"after step {self.prediction.after}"
        return f"tell_prediction(trial {self.trial}, {after}: {median:g} in the end)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityCall:
    """A call of `Tuner.tell_priority` for this model; None if the computation failed."""

    model: int
    priority: Priority | None

    def __str__(self) -> str:
        value = "None" if self.priority is None else f"{self.priority.value:g}"
        return f"tell_priority(model {self.model}, {value})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCall:
    """A call of `Tuner.tell_time` at this time."""

    seconds: float

    def __str__(self) -> str:
        return f"tell_time({self.seconds:g})"


Cause = AskCall | TellCall | FailCall | WidenCall | AnswerCall | PriorityCall | TimeCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a tuner with its decisions and the proposals of its sampler.

    `questions` belong to the trials for which the tuner decided `Predict`, and to the models for
    which it decided `Assess`, in the order of these decisions.
    """

    cause: Cause
    decisions: tuple[Decision, ...]
    proposals: tuple[Proposal, ...] = ()
    questions: tuple[Question | PriorityQuestion, ...] = ()

    def __str__(self) -> str:
        return f"{self.cause} -> {in_words(self.decisions)}"


class ConformanceError(AssertionError):
    """A tuner or predictor breaks a rule of its protocol.

    Parameters
    ----------
    problem
        The rule, and the value that breaks it.
    calls
        All calls so far.
    """

    def __init__(self, problem: str, calls: Iterable[Call] = ()) -> None:
        self.problem, self.calls = problem, tuple(calls)
        super().__init__(problem, self.calls)

    def __str__(self) -> str:
        return "\n".join([self.problem, *story(self.calls)])


def story(calls: Iterable[Call]) -> list[str]:
    """Return one line for each of the last calls."""
    lines = [f"  {number:4} {call}" for number, call in enumerate(calls)]
    left_out = len(lines) - _SHOWN
    return [f"  ({left_out} earlier calls)", *lines[-_SHOWN:]] if left_out > 0 else lines


def in_words(decisions: Iterable[Decision]) -> str:
    """Return decisions as a short text.

    Examples
    --------
    >>> in_words([Extend(trial=3, until=9, reports=(1, 3)), Stop(trial=2), Finish()])
    'extend 3 to 9 reporting 1, 3; stop 2; finish'
    """
    return "; ".join(_in_words(decision) for decision in decisions) or "nothing"


def _in_words(decision: Decision) -> str:
    match decision:
        case Register():
            return f"register {decision.trial}"
        case Extend():
            steps = ", ".join(str(step) for step in decision.reports)
            text = f"extend {decision.trial} to {decision.until}"
            return f"{text} reporting {steps}" if steps else text
        case Stop():
            return f"stop {decision.trial}"
        case Rank():
            return f"rank {decision.trial} at {decision.priority:g}"
        case Predict():
            return f"predict {decision.trial}"
        case Assess():
            return f"assess model {decision.model}"
        case Finish():
            return "finish"
        case _:
            return repr(decision)


def perform(tuner: Tuner, cause: Cause, earlier: Iterable[Call]) -> tuple[Decision, ...]:
    """Make one call of a tuner and return its decisions; add the calls so far to its errors."""
    try:
        match cause:
            case AskCall():
                return tuple(tuner.ask(cause.capacity))
            case TellCall():
                return tuple(tuner.tell(cause.report))
            case FailCall():
                return tuple(tuner.tell_failure(cause.trial))
            case WidenCall():
                return tuple(tuner.widen(cause.trials))
            case AnswerCall():
                return tuple(tuner.tell_prediction(cause.trial, cause.prediction))
            case PriorityCall():
                return tuple(tuner.tell_priority(cause.model, cause.priority))
            case TimeCall():
                return tuple(tuner.tell_time(cause.seconds))
    except Exception as error:
        error.add_note("\n".join([f"in {cause} after", *story(earlier)]))
        raise


def difference(decisions: tuple[Decision, ...], expected: tuple[Decision, ...]) -> str:
    """Return the first difference between decisions and the expected ones, in words."""
    texts = in_words(decisions), in_words(expected)
    if texts[0] == texts[1]:
        # They differ in a field that the short text leaves out, such as a hyper-parameter.
        pairs = zip(decisions, expected, strict=True)
        texts = next((str(new), str(old)) for new, old in pairs if new != old)
    return f"{texts[0]!r}, before it was {texts[1]!r}"
