"""The command ``simulate``: tuners side by side on recorded curves."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dasktune.errors import ConfigurationError, refuse, unknown
from dasktune.types import Step

if TYPE_CHECKING:
    from dasktune.algos.base import Tuner
    from dasktune.report.svg import Svg
    from dasktune.simulate.comparison import Compared, Spread
    from dasktune.simulate.trace import Trace

MOST_LINES = 5
"""Tuners that a picture can tell apart."""

FIGURES = ("best", "seconds_to", "steps_to", "seconds", "steps", "completed")
"""What is told of each tuner: attributes of `dasktune.simulate.comparison.Repeat`."""


def simulate(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="Recorded curves, an .npz file.")],
    tuner: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[:KEY=VALUE]...",
            help="Tuner and its arguments, such as asha:eta=3. May be repeated.",
        ),
    ],
    metric: Annotated[str | None, typer.Option(help="May be left out if there is one.")] = None,
    direction: Annotated[str, typer.Option(help="maximize or minimize.")] = "minimize",
    workers: Annotated[int, typer.Option(min=1, help="Simulated workers.")] = 8,
    trials: Annotated[
        int | None, typer.Option(min=1, help="As many as there are configurations if not given.")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="All that were recorded if not given.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Value of the metric to measure the time to.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="End each run when so many were trained.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each tuner.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the first run.")] = 0,
    straggling: Annotated[
        float, typer.Option(min=0, help="Standard deviation of z: a job takes 1+|z| as long.")
    ] = 0.0,
    drop: Annotated[
        float, typer.Option(min=0, help="Probability that a job is dropped in a second.")
    ] = 0.0,
    from_scratch: Annotated[
        bool,
        typer.Option("--from-scratch", help="Promoted trials train again from step 0."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Draw the best value by time: an .svg.")
    ] = None,
) -> None:
    """Compare tuners on recorded curves, without training.

    Says how long, and how many steps, each takes to the target, and the best value it
    finds: the median of its runs, with their range. Times are virtual.
    """
    from dasktune.limits import Limits
    from dasktune.simulate.comparison import compare
    from dasktune.simulate.trace import Trace

    refuse(_problems(plot, tuner, target))
    curves = Trace.load(trace)
    metric = _metric(curves, metric)
    found = compare(
        _tuners(tuner, curves, trials=trials, max_steps=max_steps),
        curves,
        repeats=repeats,
        target=target,
        seed=seed,
        metric=metric,
        direction=direction,
        workers=workers,
        straggling=straggling,
        drop=drop,
        resume=not from_scratch,
        limits=Limits(steps=steps),
    )
    if plot is not None:
        _draw(found, metric).save(plot)
    if as_json:
        conditions = {"workers": workers, "straggling": straggling, "drop": drop, "steps": steps}
        conditions |= {"from_scratch": from_scratch}
        head = {"trace": str(trace), "metric": metric, "direction": direction, "target": target}
        tuners = [_document(one, target) for one in found]
        document = {**head, **conditions, "repeats": repeats, "seed": seed, "tuners": tuners}
        typer.echo(json.dumps(document, indent=2))
    else:
        typer.echo("\n".join(_table(found, metric, target)))


def _problems(plot: Path | None, tuners: Sequence[str], target: float | None) -> list[str]:
    """Return what is wrong with arguments that are used only when all has been simulated."""
    found = []
    if target is not None and not math.isfinite(target):
        found.append(f"--target must be finite, got {target}")
    if plot is not None and len(tuners) > MOST_LINES:
        found.append(f"--plot must have at most {MOST_LINES} tuners, got {len(tuners)}")
    if plot is not None and (plot.suffix != ".svg" or not plot.parent.is_dir()):
        found.append(f"--plot must be an .svg in a folder that exists, got {str(plot)!r}")
    return found


def _metric(trace: Trace, name: str | None) -> str:
    if name is None and len(trace.metrics) > 1:
        raise ConfigurationError(f"--metric must be one of {', '.join(sorted(trace.metrics))}")
    return trace.metrics[0] if name is None else name


# -------------------------------------------------------------------------------- tuners


def _tuners(
    texts: Iterable[str], trace: Trace, *, trials: int | None, max_steps: Step | None
) -> dict[str, Callable[[int], Tuner]]:
    """Return by the text of each tuner what makes it for a seed.

    Raises
    ------
    ConfigurationError
        If a name or an argument is unknown, one is missing, or a text came twice: all at once.
    """
    given = {
        "space": trace.space(),
        "trials": len(trace.configurations) if trials is None else trials,
        "max_steps": trace.steps if max_steps is None else max_steps,
    }
    found: dict[str, Callable[[int], Tuner]] = {}
    problems: list[str] = []
    for text in texts:
        try:
            if text in found:
                problems.append(f"a tuner may come only once, got {text!r} again")
            found[text] = partial(_make, *_parsed(text, given))
            found[text](0)  # what is wrong with the last is said before the first runs
        except ConfigurationError as error:
            problems += error.problems
    refuse(problems)
    return found


def _parsed(text: str, given: Mapping[str, Any]) -> tuple[type[Tuner], dict[str, Any]]:
    """Return the class of a tuner and its arguments without a seed."""
    from dasktune.cli.study_file import parse_config

    name, *settings = text.split(":")
    known = _known_tuners()
    if name.lower() not in known:
        raise ConfigurationError(unknown("tuner", name, (one.__name__ for one in known.values())))
    kind = known[name.lower()]
    own = parse_config(settings)
    parameters = inspect.signature(kind).parameters
    taken = {key for key in parameters if key not in ("space", "seed")}
    refuse(f"{text}: {unknown('argument', key, taken)}" for key in own if key not in taken)
    arguments = {key: value for key, value in {**given, **own}.items() if key in parameters}
    refuse(
        f"{text}: {name} must be given {key}={key.upper()}"
        for key, one in parameters.items()
        if one.default is one.empty and key not in arguments
    )
    return kind, arguments


def _make(kind: type[Tuner], arguments: Mapping[str, Any], seed: int) -> Tuner:
    seeded = {"seed": seed} if "seed" in inspect.signature(kind).parameters else {}
    return kind(**arguments, **seeded)


def _known_tuners() -> dict[str, type[Tuner]]:
    """Return the tuners on a space by their names in lower case."""
    from dasktune import algos

    kinds = [getattr(algos, name) for name in algos.__all__]
    return {
        kind.__name__.lower(): kind
        for kind in kinds
        if {"space", "max_steps"} <= inspect.signature(kind).parameters.keys()
    }


# --------------------------------------------------------------------------------- output


def _document(found: Compared, target: float | None) -> dict[str, object]:
    figures = {name: found.spread(name) for name in FIGURES}
    return {
        "tuner": found.name,
        "reached": None if target is None else found.reached,
        **{
            name: {"median": one.median, "low": one.low, "high": one.high}
            for name, one in figures.items()
        },
    }


def _table(found: Sequence[Compared], metric: str, target: float | None) -> list[str]:
    from dasktune.cli.results import table

    names = {"best": f"best {metric}", "seconds": "seconds", "steps": "steps"}
    if target is not None:
        to = f"to {target:g}"
        names = {"seconds_to": f"seconds {to}", "steps_to": f"steps {to}", **names}
    header = ["tuner", *(["reached"] if target is not None else []), *names.values()]
    rows = []
    for one in found:
        reached = [] if target is None else [f"{one.reached} of {len(one.repeats)}"]
        rows.append([one.name, *reached, *(_shown(one.spread(name)) for name in names)])
    return table(header, rows)


def _shown(spread: Spread) -> str:
    low, median, high = (
        "never" if value is None else f"{value:,.5g}" if value < 1e5 else f"{value:,.0f}"
        for value in (spread.low, spread.median, spread.high)
    )
    return median if low == high else f"{median} ({low} to {high})"


def _draw(found: Sequence[Compared], metric: str) -> Svg:
    """Return the best value by time: the median of each tuner, and its runs behind."""
    from dasktune.report.curves import Curve, draw_curves

    medians = [
        Curve(
            points=_stairs(one.median_line(), max(run.seconds for run in one.repeats)),
            name=one.name,
        )
        for one in found
    ]
    runs = [
        Curve(
            points=_stairs([(at, value) for at, _, value in run.incumbents], run.seconds),
            name=one.name,
        )
        for one in found
        for run in one.repeats
    ]
    heading = f"best {metric} by virtual time"
    return draw_curves(
        medians,
        runs if len(found[0].repeats) > 1 else [],
        metric=f"best {metric}",
        heading=heading,
        across="virtual seconds",
        rest="each run",
    )


def _stairs(points: Sequence[tuple[float, float]], end: float) -> tuple[tuple[float, float], ...]:
    """Return the corners of a line that stays at each value until the next, and to the end."""
    corners: list[tuple[float, float]] = []
    for at, value in points:
        if corners:
            corners.append((at, corners[-1][1]))
        corners.append((at, value))
    if corners:
        corners.append((end, corners[-1][1]))
    return tuple(corners)
