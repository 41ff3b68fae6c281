"""The command ``simulate``: tuners side by side on recorded curves."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dasktune.cli.options import picture_problems
from dasktune.errors import ConfigurationError, refuse, unknown
from dasktune.types import Step

if TYPE_CHECKING:
    from dasktune.algos.base import Tuner
    from dasktune.algos.samplers import Source
    from dasktune.report.svg import Svg
    from dasktune.simulate.comparison import Compared, Spread
    from dasktune.space import Space
    from dasktune.traces.timing import Overheads
    from dasktune.traces.trace import Trace

MOST_LINES = 5
"""Tuners that a picture can tell apart."""

WORKERS = 8
"""Simulated workers unless some are given."""

FIGURES = ("best", "seconds_to", "steps_to", "seconds", "steps", "completed")
"""What is told of each tuner: attributes of `dasktune.simulate.comparison.Repeat`."""

TIMES = ("reached", "mean", "median", "quartiles", "times the first (mean / median)")
"""What is told of the time to a target."""

MUCH = 0.1
"""The part of a time from which on it is said how much of it is not training."""


def simulate(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="Recorded curves: .zarr, .zarr.zip or .npz.")
    ],
    tuner: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[:KEY=VALUE]...",
            help="Tuner and its arguments, such as asha:eta=3 or pop:within=600:bounds=[0,1]. "
            "May be repeated.",
        ),
    ],
    metric: Annotated[
        str | None, typer.Option(help="The one that was optimised, or the only one, if not given.")
    ] = None,
    direction: Annotated[
        str | None, typer.Option(help="maximize or minimize; as recorded, or minimize.")
    ] = None,
    workers: Annotated[
        list[int] | None,
        typer.Option(min=1, help=f"Simulated workers, {WORKERS} if not given. May be repeated."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="As many as there are configurations if not given.")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="All that were recorded if not given.")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Value of the metric to measure the time to, and for pop to reach, unless it has "
            "one of its own."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="End each run when so many were trained.")
    ] = None,
    orders: Annotated[
        int, typer.Option(min=1, help="Random orders of the configurations, the same for all.")
    ] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Of the first order, and its tuner.")] = 0,
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
    no_overheads: Annotated[
        bool,
        typer.Option("--no-overheads", help="Only steps take time: no start, load or save does."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Draw the best value by time, or the time to a target: an .svg."
        ),
    ] = None,
) -> None:
    """Compare tuners on recorded curves, without training.

    Says how long, and how many steps, each takes to the target, and the best value it
    finds, over random orders of the configurations: trial number i is the same one for all
    tuners. Times are virtual.
    """
    from dasktune.engine.limits import Limits
    from dasktune.simulate.comparison import compare
    from dasktune.traces.timing import Overheads
    from dasktune.traces.trace import Trace

    capacities = list(dict.fromkeys(workers or [WORKERS]))
    refuse(_problems(plot, tuner, target, capacities))
    curves = Trace.load(trace)
    if no_overheads:
        curves = replace(curves, overheads=Overheads())
    objective = curves.objective(metric, direction)
    (metric,), (towards,) = objective.metrics, objective.directions
    found = compare(
        _tuners(tuner, curves, trials=trials, max_steps=max_steps, target=target),
        curves,
        repeats=orders,
        target=target,
        seed=seed,
        metric=metric,
        direction=towards,
        workers=capacities,
        straggling=straggling,
        drop=drop,
        resume=not from_scratch,
        limits=Limits(steps=steps),
    )
    if plot is not None:
        _draw(found, metric, target).save(plot)
    if as_json:
        conditions = {"workers": capacities, "straggling": straggling, "drop": drop}
        conditions |= {"steps": steps, "from_scratch": from_scratch, "orders": orders, "seed": seed}
        conditions |= {"overheads": curves.overheads.to_json()}
        head = {"trace": str(trace), "metric": metric, "direction": towards.value, "target": target}
        tuners = [_document(one, _first(found, one), target) for one in found]
        typer.echo(json.dumps({**head, **conditions, "tuners": tuners}, indent=2))
    else:
        lines = [*_text(found, metric, target), *_start(curves.overheads, found, target)]
        typer.echo("\n".join(lines))


def _problems(
    plot: Path | None, tuners: Sequence[str], target: float | None, workers: Sequence[int]
) -> list[str]:
    """Return what is wrong with arguments that are used only when all has been simulated."""
    found = []
    if target is not None and not math.isfinite(target):
        found.append(f"--target must be finite, got {target}")
    if plot is not None and len(tuners) > MOST_LINES:
        found.append(f"--plot must have at most {MOST_LINES} tuners, got {len(tuners)}")
    if plot is not None and target is None and len(workers) > 1:
        found.append("--plot of several --workers must have a --target: it draws the time to it")
    return [*found, *picture_problems(plot)]


# -------------------------------------------------------------------------------- tuners


def _tuners(
    texts: Iterable[str],
    trace: Trace,
    *,
    trials: int | None,
    max_steps: Step | None,
    target: float | None,
) -> dict[str, Callable[[int], Tuner]]:
    """Return by the text of each tuner what makes it for a seed.

    Raises
    ------
    ConfigurationError
        If a name or an argument is unknown, one is missing, or a text came twice: all at once.
    """
    given = {
        "space": trace.space(),
        "target": target,
        "trials": len(trace.configurations) if trials is None else trials,
        "max_steps": trace.steps if max_steps is None else max_steps,
    }
    found: dict[str, Callable[[int], Tuner]] = {}
    problems: list[str] = []
    for text in texts:
        try:
            if text in found:
                problems.append(f"a tuner may come only once, got {text!r} again")
            found[text] = partial(_make, trace, *_parsed(text, given))
            found[text](0)  # what is wrong with the last is said before the first runs
        except ConfigurationError as error:
            problems += error.problems
    refuse(problems)
    return found


def _parsed(text: str, given: Mapping[str, Any]) -> tuple[type[Tuner], dict[str, Any]]:
    """Return the class of a tuner and its arguments without space and seed."""
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
    return kind, {key: value for key, value in arguments.items() if key != "space"}


def _make(
    trace: Trace, kind: Callable[..., Tuner], arguments: Mapping[str, Any], seed: int
) -> Tuner:
    """Return a tuner that takes the configurations in the order of a seed, each once."""
    parameters = inspect.signature(kind).parameters
    space = trace.space(order=seed)
    own = {"space": space, "sampler": _in_order(space), "seed": seed}
    return kind(**{**{key: own[key] for key in own if key in parameters}, **arguments})


def _in_order(space: Space) -> Source:
    """Return what proposes the points of a trace's space one after the other."""
    from dasktune.algos.samplers import GivenSource
    from dasktune.space import Choice

    ((name, domain),) = space.dimensions
    labels = domain.labels if isinstance(domain, Choice) and len(domain.labels) > 1 else ()
    points = [{name: label} for label in labels] or [{}]
    return GivenSource(map(space.at, points), "in order")


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


def _first(found: Sequence[Compared], one: Compared) -> Compared:
    """Return the first tuner on as many workers."""
    return next(other for other in found if other.workers == one.workers)


def _document(found: Compared, first: Compared, target: float | None) -> dict[str, object]:
    mean, median = found.times(first, "seconds_to") if target is not None else (None, None)
    return {
        "tuner": found.name,
        "workers": found.workers,
        "reached": None if target is None else found.reached,
        "times_first": {"mean": mean, "median": median},
        **{name: asdict(found.spread(name)) for name in FIGURES},
    }


def _text(found: Sequence[Compared], metric: str, target: float | None) -> Iterator[str]:
    """Yield the lines of a table for each number of workers, and what it is about."""
    from dasktune.cli.results import table
    from dasktune.report.formats import count

    names = {"best": f"best {metric}", "seconds": "seconds", "steps": "steps"}
    if target is not None:
        names = {"steps_to": "steps to it", "best": names["best"]}
    for capacity in dict.fromkeys(one.workers for one in found):
        mine = [one for one in found if one.workers == capacity]
        if target is not None:
            orders = count(len(mine[0].repeats), "order")
            yield f"seconds to {metric} {target:g} on {count(capacity, 'worker')}, {orders}:"
        elif capacity != found[0].workers or capacity != found[-1].workers:
            yield f"on {count(capacity, 'worker')}:"
        header = ["tuner", *(TIMES if target is not None else ()), *names.values()]
        yield from table(header, [[*_row(one, mine[0], names, target)] for one in mine])
        if capacity != found[-1].workers:
            yield ""


def _start(overheads: Overheads, found: Iterable[Compared], target: float | None) -> Iterator[str]:
    """Yield what of each time passes before the first step, where that is much of one."""
    figure = "seconds" if target is None else "seconds_to"
    known = [time for one in found if (time := one.spread(figure).low) is not None]
    if known and overheads.start > MUCH * min(known):
        yield (
            f"{_figure(overheads.start)} s of each time pass before the first step; "
            "with --no-overheads only steps take time"
        )


def _row(
    one: Compared, first: Compared, names: Iterable[str], target: float | None
) -> Iterator[str]:
    yield one.name
    if target is not None:
        spread = one.spread("seconds_to")
        yield f"{one.reached} of {len(one.repeats)}"
        yield _figure(spread.mean)
        yield _shown(spread)
        yield f"{_figure(spread.q1)} to {_figure(spread.q3)}"
        ratios = one.times(first, "seconds_to")
        yield " / ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    for name in names:
        yield _shown(one.spread(name))


def _shown(spread: Spread) -> str:
    low, median, high = map(_figure, (spread.low, spread.median, spread.high))
    return median if low == high else f"{median} ({low} to {high})"


def _figure(value: float | None) -> str:
    return "never" if value is None else f"{value:,.5g}" if value < 1e5 else f"{value:,.0f}"


def _draw(found: Sequence[Compared], metric: str, target: float | None) -> Svg:
    """Return a picture of the times to the target, or of the best value by time without one."""
    if target is None:
        return _draw_best(found, metric)
    from dasktune.report.times import Times, draw_times

    times = [
        Times(
            name=one.name,
            workers=one.workers,
            seconds=tuple(repeat.seconds_to for repeat in one.repeats),
        )
        for one in found
    ]
    return draw_times(times, target=f"{metric} {target:g}")


def _draw_best(found: Sequence[Compared], metric: str) -> Svg:
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
        rest="each order",
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
