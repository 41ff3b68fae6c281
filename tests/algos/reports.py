"""Reports to tuners of one metric, and what tuners ask for then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dasktune.types import Decision, Extend, Report, Step, Value


def arrived(trial: int, step: Step, loss: float) -> Report:
    """Return the report of a loss."""
    return Report(trial=trial, step=step, metrics={"loss": loss}, losses=(loss,))


def extends(decisions: Iterable[Decision]) -> list[tuple[int, Step]]:
    """Return the trials that are to go on, each with the step that it is to reach."""
    return [(item.trial, item.until) for item in decisions if isinstance(item, Extend)]


def accuracy(values: Mapping[str, Value], step: Step) -> float:
    """Return an accuracy that grows with the steps, and most for a rate of 0.3."""
    lr = values["lr"]
    assert isinstance(lr, float)
    return (1 - abs(lr - 0.3)) ** 3 * step / (step + 3)
