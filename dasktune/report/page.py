"""The HTML report: one page about a study, without any other file or network access.

`gather` collects the contents from a study, `render` makes the page. The template escapes names
and values, but not the drawings of `dasktune.report.svg`, which are escaped already.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dasktune.driver.run_status import RunStatus
from dasktune.engine.trials import Trial
from dasktune.graph.classes import classes_text
from dasktune.graph.devices import devices_text
from dasktune.graph.plan import SearchPlan
from dasktune.report.curves import PlottedCurve, curves_of, draw_curves, points_of
from dasktune.report.fan import draw_fan
from dasktune.report.formats import count, duration, number, percent
from dasktune.report.gantt import draw_gantt
from dasktune.report.notebook import page_html
from dasktune.report.prospects import Prospects, prospects_of
from dasktune.report.sequence_plot import sparkline
from dasktune.report.status_report import is_driven
from dasktune.report.svg import Svg, marks_css
from dasktune.report.tree_layout import layout
from dasktune.report.tree_svg import described, draw_tree
from dasktune.results.prediction import INTERVALS, TrialPrediction
from dasktune.results.state_words import state_word, states_text
from dasktune.results.summary import Summary, savings_line, withdrawn_text
from dasktune.storage.database.schema import StageRow
from dasktune.storage.layout import slug
from dasktune.types import Direction, Step, TrialState, ValueFunction

HIGHLIGHTED = 5
"""Number of best trials with a coloured learning curve."""

LISTED = 1000
"""Most trials in the table, the best first and those without a value last."""

MODELS = 20
"""Most models in their table."""

FAILURES = 20
"""Most different failures with a shown traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The contents of a report.

    `classes` are the workers of the last run by compute class and by pool, in words; empty if
    unknown. `is_driven` says whether a driver runs the study.
    """

    name: str
    metric: str
    direction: Direction
    trials: Sequence[Trial]
    summary: Summary
    plan: SearchPlan
    stages: Sequence[StageRow]
    written: datetime
    prospects: Prospects = field(default_factory=Prospects)
    classes: str = ""
    is_driven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A hyper-parameter of a trial: its value, or its formula with a plot; and its full value."""

    words: str
    exact: str
    plot: Svg | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A trial in the table, and its state in a word."""

    trial: Trial
    cells: tuple[Cell, ...]
    state: str

    @property
    def devices(self) -> str:
        """The numbers of devices that train the trial, in words."""
        return devices_text(self.trial.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A bar of the cost: a number of steps, as a share of the largest number."""

    name: str
    meaning: str
    steps: int
    share: float
    look: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fan:
    """The fan of a trial, with its description."""

    words: str
    drawing: Svg


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendFigure:
    """A line of the table about suspending: latency in ms and size in KB."""

    name: str
    milliseconds: float
    kilobytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Trials that failed with the same traceback."""

    trials: str
    last_line: str
    traceback: str


def report_path(study: Any) -> Path:
    """Return the default file of a study's report: in a local storage, or in this folder."""
    folder = Path(study.store.url.removeprefix("file://"))
    name = f"report-{slug(study.name)}.html"
    return (folder if folder.is_dir() else Path()) / name


class ReportPath(type(Path())):  # type: ignore[misc]  # before Python 3.12, Path has no subclasses
    """The path of a report; a notebook shows the page."""

    def _repr_html_(self) -> str:
        return f"{page_html(self.read_text(encoding='utf-8'))}<code>{escape(str(self))}</code>"


def write_report(study: Any, path: Path) -> Path:
    """Write the report of a study, and return its path.

    Parameters
    ----------
    study
        A `dasktune.study.study.Study`.
    path
        The file to write; a missing folder is created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A message may hold half a surrogate pair, for example of a file's name.
    path.write_text(render(gather(study)), encoding="utf-8", errors="backslashreplace")
    return ReportPath(path)


def gather(study: Any) -> Content:
    """Return the contents of a study's report."""
    trials = study.trials
    return Content(
        name=study.name,
        metric=study.metric,
        direction=study.direction,
        trials=trials,
        summary=study.summary(),
        plan=study.plan,
        stages=study.stages(),
        written=datetime.now().astimezone(),
        prospects=prospects_of(study, ranking(trials, study.direction)),
        classes=_classes(study),
        is_driven=is_driven(study),
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


def render(content: Content) -> str:
    """Return the page."""
    ranked = ranking(content.trials, content.direction)
    names = tuple(dict.fromkeys(name for trial in content.trials for name in trial.sequences))
    valued = {trial.number for trial in ranked}
    others = [trial for trial in content.trials if trial.number not in valued]
    rows = [_row(trial, names, content) for trial in [*ranked, *others][:LISTED]]
    environment = Environment(
        loader=PackageLoader("dasktune.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    failed = failures(content.trials)
    environment.filters |= {"number": number, "duration": duration}
    return environment.get_template("page.html").render(
        content=content,
        summary=content.summary,
        savings=savings_line(content.summary),
        withdrawn=withdrawn_text(content.summary),
        states=states_text(
            Counter(trial.state.value for trial in content.trials), is_driven=content.is_driven
        ),
        best=rows[0] if ranked else None,
        names=names,
        divided=any(row.trial.devices[-1][1] > 1 or row.trial.devices[1:] for row in rows),
        rows=rows,
        ranked=len(ranked),
        amounts=amounts(content.summary),
        suspended=suspended(content.summary),
        models=sorted(content.summary["models"], key=lambda model: -model["weight"])[:MODELS],
        labels={label: _listed(them) for label, them in content.prospects.by_label().items()},
        failures=failed[:FAILURES],
        ways=len(failed),
        failed=sum(trial.state is TrialState.FAIL for trial in content.trials),
        written=content.written.strftime("%Y-%m-%d %H:%M %Z"),
        marks_css=marks_css(),
        **_drawings(content, ranked),
    )


def ranking(trials: Iterable[Trial], direction: Direction) -> list[Trial]:
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
    audited = summary["steps_audited"]
    if audited:
        bars.append(("audited", "by checks and audits, beside all others", audited, "k1"))
    most = max(1, asked, summary["steps_executed"], audited)
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


def failures(trials: Iterable[Trial]) -> list[FailureGroup]:
    """Return the different failures, each with its trials."""
    by_text: dict[str, list[int]] = {}
    for trial in trials:
        if trial.error is not None:
            by_text.setdefault(trial.error, []).append(trial.number)
    return [
        FailureGroup(trials=_listed(numbers), last_line=_last_line(error), traceback=error)
        for error, numbers in by_text.items()
    ]


def _drawings(content: Content, ranked: Sequence[Trial]) -> Mapping[str, object]:
    """Return the drawings of the page; a drawing without data is None."""
    names = {trial.number: _heading(trial) for trial in content.trials}
    curves = curves_of(content.plan, content.metric)
    best = [
        PlottedCurve(points=points_of(trial.metrics, content.metric), name=_heading(trial))
        for trial in ranked[:HIGHLIGHTED]
    ]
    placed = layout(content.plan)
    heading = f"{content.metric} by step"
    return {
        "tree": draw_tree(content.plan, label=lambda n: names.get(n, f"trial {n}")),
        "tree_words": described(placed),
        "is_shared": any(bar.passing > 1 for bar in placed.bars),
        "curves": draw_curves(best, curves, metric=content.metric, heading=heading)
        if curves
        else None,
        "curves_left_out": max(0, placed.nodes - len(placed.bars)) if placed.hidden else 0,
        "fans": [_fan(content, predicted) for predicted in content.prospects.predictions],
        "levels": ", ".join(f"{level:.0%}" for level in INTERVALS),
        "gantt": draw_gantt(content.stages),
        "share": percent(
            content.summary["steps_executed"] - content.summary["steps_beyond"],
            content.summary["steps_requested"],
        ),
    }


def _fan(content: Content, predicted: TrialPrediction) -> Fan:
    """Return a trial's fan with its present and predicted values in words."""
    step, value = predicted.measured[-1]
    standing = content.prospects.standings.get(predicted.trial)
    held = "" if standing is None else f" ({standing})"
    drawing = draw_fan(predicted, target=content.prospects.target)
    forecast = drawing.label.partition(", ")[2]
    words = f"Trial {predicted.trial}{held}: {number(value)} at step {step:,}."
    words += f" Predicted at {forecast}"
    return Fan(words=words, drawing=drawing)


def _heading(trial: Trial) -> str:
    return f"#{trial.number}  {number(trial.value)}"


def _row(trial: Trial, names: Sequence[str], content: Content) -> Row:
    steps = content.plan.paths[trial.number].leaf.stop
    cells = tuple(_cell(trial.sequences.get(name), steps) for name in names)
    state = state_word(trial.state, is_driven=content.is_driven)
    return Row(trial=trial, cells=cells, state=state)


def _cell(function: ValueFunction | None, steps: Step) -> Cell:
    if function is None:
        return Cell(words=number(None), exact="")
    changes = function.constant_until(0)
    if changes is None or changes >= steps:
        return Cell(words=number(function(0)), exact=str(function(0)))
    return Cell(words=repr(function), exact=repr(function), plot=sparkline(function, steps))


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:12]))
    more = f" and {len(numbers) - 12:,} more" if len(numbers) > 12 else ""
    return f"{count(len(numbers), 'trial')}: {shown}{more}"


def _last_line(error: str) -> str:
    lines = error.strip().splitlines()
    return lines[-1] if lines else "no message"
