"""The part of the report about costs and workers, and about trials that may go on.

`gather` collects the contents from a study, `render` makes the part; the page draws its plots.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dasktune._driver.run_status import RunStatus
from dasktune._engine.trials import AnyTrial
from dasktune._results.prediction import TrialPrediction
from dasktune._results.summary import Summary, savings_line, withdrawn_text
from dasktune._words import counted
from dasktune.graph.classes import classes_text
from dasktune.report.fan import words_of
from dasktune.report.formats import duration, number
from dasktune.report.prospects import Prospects, prospects_of
from dasktune.storage.database.rows import StageRow
from dasktune.types import Direction, TrialState

MODELS = 20
"""Most models in their table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The contents of the part.

    `classes` are the workers of the last run by compute class and by pool, in words; empty if
    unknown.
    """

    summary: Summary
    stages: Sequence[StageRow]
    prospects: Prospects = field(default_factory=Prospects)
    classes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A bar of the cost: a number of steps, as a share of the largest number."""

    name: str
    meaning: str
    steps: int
    share: float
    look: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendFigure:
    """A line of the table about suspending: latency in ms and size in KB."""

    name: str
    milliseconds: float
    kilobytes: float


def gather(study: Any) -> Content:
    """Return the contents from a study."""
    return Content(
        summary=study.summary(),
        stages=study.stages(),
        prospects=prospects_of(study, ranking(study.records.values(), study.direction)),
        classes=_classes(study),
    )


def _classes(study: Any) -> str:
    """Return the workers of the last run by class and by pool, and their packing, in words."""
    row = study.database.study(study.name)
    run = None if row is None else study.database.last_run(row.id)
    if run is None:
        return ""
    status = RunStatus.from_row(run)
    classes = [classes_text(status.classes)] if status.classes else []
    return "; ".join([*classes, *map(str, status.pools), *map(str, status.packing)])


def render(content: Content, study: int = 0) -> str:
    """Return the part as an element of a page, with links to trials of the study of this number."""
    environment = Environment(
        loader=PackageLoader("dasktune.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "duration": duration}
    summary, prospects = content.summary, content.prospects
    return environment.get_template("costs.html").render(
        content=content,
        summary=summary,
        savings=savings_line(summary),
        withdrawn=withdrawn_text(summary),
        amounts=amounts(summary),
        suspended=suspended(summary),
        models=sorted(summary["models"], key=lambda model: -model["weight"])[:MODELS],
        labels={label: _listed(trials) for label, trials in prospects.by_label().items()},
        predicted={each.trial: _predicted(content, each) for each in prospects.predictions},
        study=study,
    )


def ranking(trials: Iterable[AnyTrial], direction: Direction) -> list[AnyTrial]:
    """Return the trials with a finite value, the best first, without failed trials."""
    sign = -1.0 if direction is Direction.MAXIMIZE else 1.0
    valued = [
        (sign * trial.value, trial.number, trial)
        for trial in trials
        if trial.value is not None
        and math.isfinite(trial.value)
        and trial.state is not TrialState.FAIL
    ]
    return [trial for _, _, trial in sorted(valued, key=lambda entry: entry[:2])]


def amounts(summary: Summary) -> list[Amount]:
    """Return the bars of the cost."""
    asked = summary["steps_requested"]
    bars = [
        ("asked for", "steps of every trial as far as it was asked for", asked, "s1"),
        ("unique", "different states among them", summary["steps_unique"], "s3"),
        ("executed", "trained by workers", summary["steps_executed"], "s5"),
        ("repeated", "of those, trained before", summary["steps_repeated"], "k1"),
        ("reused", "found from other runs", summary["steps_reused"], "k3"),
    ]
    if beyond := summary["steps_beyond"]:
        words = "of those, used by no result: trials were stopped or failed meanwhile"
        bars.insert(-1, ("beyond", words, beyond, "k1"))
    if withdrawn := summary["steps_withdrawn"]:
        bars.insert(
            -1, ("withdrawn", "of those, before an audit forbade to merge", withdrawn, "k1")
        )
    audited = summary["audits"]["steps"]
    checked = summary["steps_audited"] - audited
    if checked:
        bars.append(("checked", "by checks of the trainer, beside all others", checked, "k1"))
    if audited:
        bars.append(("audited", "by audits, beside all others", audited, "k1"))
    most = max(1, asked, summary["steps_executed"], checked, audited)
    return [
        Amount(name=name, meaning=meaning, steps=steps, share=100 * steps / most, look=look)
        for name, meaning, steps, look in bars
    ]


def suspended(summary: Summary) -> list[SuspendFigure]:
    """Return the figures of suspending, or an empty list."""
    suspensions = summary["suspensions"]
    if suspensions is None:
        return []
    seconds, nbytes = suspensions["seconds"], suspensions["nbytes"]
    lines = [
        ("mean", seconds["mean"], nbytes["mean"]),
        ("standard deviation", seconds["deviation"], nbytes["deviation"]),
        ("95th percentile", seconds["p95"], nbytes["p95"]),
        ("largest", seconds["most"], nbytes["most"]),
    ]
    return [
        SuspendFigure(name=name, milliseconds=1e3 * s, kilobytes=n / 1e3) for name, s, n in lines
    ]


def _predicted(content: Content, predicted: TrialPrediction) -> str:
    """Return the present and the predicted values of a trial in words."""
    step, value = predicted.measured[-1]
    standing = content.prospects.standings.get(predicted.trial)
    held = "" if standing is None else f" ({standing})"
    forecast = words_of(predicted, content.prospects.target).partition(", ")[2]
    return f"{held} has {number(value)} at step {step:,}. Predicted at {forecast}."


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:12]))
    more = f" and {len(numbers) - 12:,} more" if len(numbers) > 12 else ""
    return f"{counted(len(numbers), 'trial')}: {shown}{more}"
