"""The words for a report without a metric of the study: where the metric is, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from dasktune.errors import unknown
from dasktune.types import Metrics, Report, Step

_MOST_SHOWN = 4
"""Steps of which a message names all."""


def absent_text(metric: str, report: Report, known: Iterable[tuple[Step, Metrics]]) -> str:
    """Return why a report cannot be given to a tuner; `known` are all metrics of its trial by step.

    Examples
    --------
    >>> known = [(step, {"train": 0.5, **({} if step % 5 else {"val": 0.6})}) for step in range(12)]
    >>> print(absent_text("val", Report(trial=0, step=2, metrics={"train": 0.5}), known[1:]))
    metric 'val' is absent at step 2 (present at 5, 10): report it in each step, or give the study \
report_every=5 and its tuner only steps that are multiples of 5
    >>> print(absent_text("val", Report(trial=0, step=2, metrics={"train": 0.5}), known[1:3]))
    metric 'val' is absent at step 2: unknown metric 'val'; known: train; if the trainer \
reports it only in later steps, report it in each step, or give the tuner only steps at which the \
trainer reports it
    """
    start = f"{absent_start(metric)} at step {report.step:,}"
    present = [step for step, metrics in known if metric in metrics]
    if not present:
        return (
            f"{start}: {unknown('metric', metric, report.metrics)}; if the trainer reports it "
            "only in later steps, report it in each step, or give the tuner only steps at which "
            "the trainer reports it"
        )
    every, shown = gcd(*present), ", ".join(f"{step:,}" for step in present[:_MOST_SHOWN])
    if len(present) > _MOST_SHOWN:
        shown = f"{shown}, ... {present[-1]:,}"
    of_study = (
        f", or give the study report_every={every} and its tuner only steps that are multiples of "
        f"{every}"
    )
    return f"{start} (present at {shown}): report it in each step{of_study if every > 1 else ''}"


def absent_start(metric: str) -> str:
    """Return the first words of `absent_text`, by which a failure of this kind is known again."""
    return f"metric {metric!r} is absent"
