"""The command ``simulate``: compare tuners on recorded curves."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dasktune.cli.options import AsJson, Config, flat, picture_problems, print_json
from dasktune.cli.pools import Pool, PoolOptions, configured, pool_text, size_of, speeds_of
from dasktune.errors import ConfigurationError, refuse, unknown
from dasktune.types import Objective, Step

if TYPE_CHECKING:
    from dasktune.algos.base import Tuner
    from dasktune.algos.samplers import Source
    from dasktune.needs import Needs
    from dasktune.report.svg import Svg
    from dasktune.simulate.comparison import Compared, Spread
    from dasktune.space import Space
    from dasktune.traces.timing import Overheads
    from dasktune.traces.trace import Trace

MOST_LINES = 5
"""Most tuners in one picture: more lines cannot be told apart."""

WORKERS = 8
"""Default number of simulated workers."""

FIGURES = ("best", "seconds_to", "steps_to", "seconds", "steps", "completed")
"""Figures printed for each tuner: attributes of `dasktune.simulate.comparison.Repeat`."""

TIMES = ("reached", "mean", "median", "quartiles", "times the first (mean / median)")
"""Columns on the time to a target."""

MUCH = 0.1
"""The share of the time before the first step from which on the text mentions it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionOptions:
    """The conditions of the simulated runs, the same for all tuners."""

    steps: Annotated[
        int | None, typer.Option(min=1, help="End each run when so many were trained.")
    ] = None
    orders: Annotated[
        int, typer.Option(min=1, help="Random orders of the configurations, the same for all.")
    ] = 5
    seed: Annotated[int, typer.Option(min=0, help="Of the first order, and its tuner.")] = 0
    straggling: Annotated[
        float, typer.Option(min=0, help="Standard deviation of z: a job takes 1+|z| as long.")
    ] = 0.0
    drop: Annotated[
        float, typer.Option(min=0, help="Probability that a job is dropped in a second.")
    ] = 0.0
    from_scratch: Annotated[
        bool,
        typer.Option("--from-scratch", help="Promoted trials train again from step 0."),
    ] = False
    no_overheads: Annotated[
        bool,
        typer.Option("--no-overheads", help="Only steps take time: no start, load or save does."),
    ] = False
    speed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS=SPEED",
            help="With slow=0.25, steps take 4 times as long on class slow; 1 if not given. "
            "May be repeated.",
        ),
    ] = None
    needs_of: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The trials have the needs of this study file."),
    ] = None
    config: Config = None

    def to_json(self) -> dict[str, object]:
        """Return the conditions as a part of the command's JSON document."""
        names = ("straggling", "drop", "steps", "from_scratch", "orders", "seed")
        return {name: getattr(self, name) for name in names}


@flat
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
    *,
    metric: Annotated[
        str | None, typer.Option(help="The one that was optimised, or the only one, if not given.")
    ] = None,
    direction: Annotated[
        str | None, typer.Option(help="maximize or minimize; as recorded, or minimize.")
    ] = None,
    pool: PoolOptions,
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
    conditions: ConditionOptions,
    as_json: AsJson = False,
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
    from dasktune.traces.timing import Overheads
    from dasktune.traces.trace import Trace

    pools = pool.pools(WORKERS)
    refuse(_problems(plot, tuner, target, pools))
    offers, speeds = pool.offers_of(pools[0]), speeds_of(conditions.speed or (), pools[0])
    curves = Trace.load(trace)
    if conditions.no_overheads:
        curves = replace(curves, overheads=Overheads())
    objective = curves.objective(metric, direction)
    needs = _needs(conditions, curves)
    tuners = _tuners(tuner, curves, needs, trials=trials, max_steps=max_steps, target=target)
    results = _compared(
        tuners,
        curves,
        objective,
        conditions,
        target=target,
        workers=pools,
        offers=offers,
        speeds=speeds,
    )
    (metric,), (towards,) = objective.metrics, objective.directions
    if plot is not None:
        _draw(results, metric, target).save(plot)
    if as_json:
        head: dict[str, object] = {
            "trace": str(trace),
            "metric": metric,
            "direction": towards.value,
            "target": target,
        }
        head |= {"workers": list(map(size_of, pools)), "classes": _classes(pools)}
        head |= {"offers": offers, "speeds": speeds, **conditions.to_json()}
        head |= {"overheads": curves.overheads.to_json()}
        rows = [_document(row, _first(results, row), target) for row in results]
        print_json({**head, "tuners": rows})
    else:
        lines = [*_text(results, metric, target, _classes(pools))]
        lines += [*_start(curves.overheads, results, target), *_equal(pools, curves, speeds)]
        typer.echo("\n".join(lines))


def _compared(
    tuners: Mapping[str, Callable[[int], Tuner]],
    curves: Trace,
    objective: Objective,
    conditions: ConditionOptions,
    *,
    target: float | None,
    workers: Sequence[Pool],
    offers: Mapping[str, Any] | None,
    speeds: Mapping[str, float] | None,
) -> Sequence[Compared]:
    """Return the results of simulated runs of all tuners."""
    from dasktune._engine.limits import Limits
    from dasktune.simulate.comparison import compare

    (metric,), (direction,) = objective.metrics, objective.directions
    return compare(
        tuners,
        curves,
        repeats=conditions.orders,
        target=target,
        seed=conditions.seed,
        metric=metric,
        direction=direction,
        workers=workers,
        offers=offers,
        speeds=speeds,
        straggling=conditions.straggling,
        drop=conditions.drop,
        resume=not conditions.from_scratch,
        limits=Limits(steps=conditions.steps),
    )


def _needs(conditions: ConditionOptions, trace: Trace) -> list[Needs] | None:
    """Return the needs of each configuration, by a study file; None without one."""
    if conditions.needs_of is None:
        return None
    from dasktune._study.preview import needs_of_configurations

    config, tuner = configured(conditions.needs_of, conditions.config or ())
    return needs_of_configurations(trace.sequences, tuner.searched_space, config.needs)


def _problems(
    plot: Path | None, tuners: Sequence[str], target: float | None, workers: Sequence[Pool]
) -> list[str]:
    """Return the problems of arguments that are first used after the simulation."""
    problems = []
    if target is not None and not math.isfinite(target):
        problems.append(f"--target must be finite, got {target}")
    if plot is not None and len(tuners) > MOST_LINES:
        problems.append(f"--plot must have at most {MOST_LINES} tuners, got {len(tuners)}")
    if plot is not None and target is None and len(workers) > 1:
        problems.append("--plot of several --workers must have a --target: it draws the time to it")
    return [*problems, *picture_problems(plot)]


# -------------------------------------------------------------------------------- tuners


def _tuners(
    texts: Iterable[str],
    trace: Trace,
    needs: Sequence[Needs] | None,
    *,
    trials: int | None,
    max_steps: Step | None,
    target: float | None,
) -> dict[str, Callable[[int], Tuner]]:
    """Return a function for each tuner, by its text, that makes the tuner for a seed.

    Raises
    ------
    ConfigurationError
        If a name or an argument is unknown or missing, or a text occurs twice: all at once.
    """
    given = {
        "space": trace.space(),
        "target": target,
        "trials": len(trace.configurations) if trials is None else trials,
        "max_steps": trace.steps if max_steps is None else max_steps,
    }
    space_of = partial(trace.space, needs=needs)
    makers: dict[str, Callable[[int], Tuner]] = {}
    problems: list[str] = []
    for text in texts:
        try:
            if text in makers:
                problems.append(f"a tuner may come only once, got {text!r} again")
            makers[text] = partial(_make, space_of, *_parsed(text, given))
            makers[text](0)  # so that no simulation starts if the last tuner is refused
        except ConfigurationError as error:
            problems += error.problems
    refuse(problems)
    return makers


def _parsed(text: str, given: Mapping[str, Any]) -> tuple[type[Tuner], dict[str, Any]]:
    """Return the class of a tuner and its arguments without space and seed."""
    from dasktune.cli.study_file import parse_config

    name, *settings = text.split(":")
    known = _known_tuners()
    plain = name.lower().replace("-", "").replace("_", "")
    if plain not in known:
        raise ConfigurationError(
            unknown("tuner", name, (tuner.__name__ for tuner in known.values()))
        )
    kind = known[plain]
    own = {key: _literal(value) for key, value in parse_config(settings).items()}
    parameters = inspect.signature(kind).parameters
    taken = {key for key in parameters if key not in ("space", "seed")}
    refuse(f"{text}: {unknown('argument', key, taken)}" for key in own if key not in taken)
    arguments = {key: value for key, value in {**given, **own}.items() if key in parameters}
    refuse(
        f"{text}: {name} must be given {key}={key.upper()}"
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty and key not in arguments
    )
    return kind, {key: value for key, value in arguments.items() if key != "space"}


def _literal(value: object) -> object:
    """Return a text that is a value of Python, such as ``[0, None]``, as that value."""
    if not isinstance(value, str):
        return value
    try:
        literal: object = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    return literal


def _make(
    space_of: Callable[..., Space],
    kind: Callable[..., Tuner],
    arguments: Mapping[str, Any],
    seed: int,
) -> Tuner:
    """Return a tuner that draws each configuration once, in the order of a seed."""
    parameters = inspect.signature(kind).parameters
    space = space_of(order=seed)
    own = {"space": space, "sampler": _in_order(space), "seed": seed}
    return kind(**{**{key: own[key] for key in own if key in parameters}, **arguments})


def _in_order(space: Space) -> Source:
    """Return a sampler that proposes the points of a trace's space one after the other."""
    from dasktune.algos.samplers import GivenSource
    from dasktune.space import Choice

    ((name, domain),) = space.dimensions
    labels = domain.labels if isinstance(domain, Choice) and len(domain.labels) > 1 else ()
    points = [{name: label} for label in labels] or [{}]
    return GivenSource(map(space.at, points), "in order")


def _known_tuners() -> dict[str, type[Tuner]]:
    """Return the tuners on a space by their names in lower case, without dashes."""
    from dasktune import algos

    kinds = [getattr(algos, name) for name in algos.__all__]
    return {
        kind.__name__.lower(): kind
        for kind in kinds
        if {"space", "max_steps"} <= inspect.signature(kind).parameters.keys()
    }


# --------------------------------------------------------------------------------- output


def _first(results: Sequence[Compared], row: Compared) -> Compared:
    """Return the first tuner with the same number of workers."""
    return next(result for result in results if result.workers == row.workers)


def _document(row: Compared, first: Compared, target: float | None) -> dict[str, object]:
    mean, median = row.times(first, "seconds_to") if target is not None else (None, None)
    return {
        "tuner": row.name,
        "workers": row.workers,
        "reached": None if target is None else row.reached,
        "times_first": {"mean": mean, "median": median},
        **{name: asdict(row.spread(name)) for name in FIGURES},
    }


def _text(
    results: Sequence[Compared],
    metric: str,
    target: float | None,
    classes: Mapping[str, int] | None,
) -> Iterator[str]:
    """Yield a heading and the lines of a table for each number of workers."""
    from dasktune._words import counted
    from dasktune.cli.results import table

    names = {"best": f"best {metric}", "seconds": "seconds", "steps": "steps"}
    if target is not None:
        names = {"steps_to": "steps to it", "best": names["best"]}
    for capacity in dict.fromkeys(result.workers for result in results):
        rows = [result for result in results if result.workers == capacity]
        workers = pool_text(classes) if classes else counted(capacity, "worker")
        if target is not None:
            orders = counted(len(rows[0].repeats), "order")
            yield f"seconds to {metric} {target:g} on {workers}, {orders}:"
        elif classes or capacity != results[0].workers or capacity != results[-1].workers:
            yield f"on {workers}:"
        header = ["tuner", *(TIMES if target is not None else ()), *names.values()]
        yield from table(header, [[*_row(row, rows[0], names, target)] for row in rows])
        if capacity != results[-1].workers:
            yield ""


def _start(
    overheads: Overheads, results: Iterable[Compared], target: float | None
) -> Iterator[str]:
    """Yield a note on the time before the first step, if that is much of the shortest time."""
    figure = "seconds" if target is None else "seconds_to"
    known = [time for result in results if (time := result.spread(figure).low) is not None]
    if known and overheads.start > MUCH * min(known):
        yield (
            f"{_figure(overheads.start)} s of each time pass before the first step; "
            "with --no-overheads only steps take time"
        )


def _equal(
    pools: Sequence[Pool], trace: Trace, speeds: Mapping[str, float] | None
) -> Iterator[str]:
    """Yield a note if nothing says which class of workers is faster."""
    if _classes(pools) and not trace.classes and not speeds:
        yield (
            "all classes are equally fast: the trace does not tell them apart, and there is no "
            "--speed"
        )


def _classes(pools: Sequence[Pool]) -> dict[str, int] | None:
    """Return the numbers of workers by class; None for plain numbers."""
    return dict(pools[0]) if isinstance(pools[0], Mapping) else None


def _row(
    row: Compared, first: Compared, names: Iterable[str], target: float | None
) -> Iterator[str]:
    yield row.name
    if target is not None:
        spread = row.spread("seconds_to")
        yield f"{row.reached} of {len(row.repeats)}"
        yield _figure(spread.mean)
        yield _shown(spread)
        yield f"{_figure(spread.q1)} to {_figure(spread.q3)}"
        ratios = row.times(first, "seconds_to")
        yield " / ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
    for name in names:
        yield _shown(row.spread(name))


def _shown(spread: Spread) -> str:
    low, median, high = map(_figure, (spread.low, spread.median, spread.high))
    return median if low == high else f"{median} ({low} to {high})"


def _figure(value: float | None) -> str:
    return "never" if value is None else f"{value:,.5g}" if value < 1e5 else f"{value:,.0f}"


def _draw(results: Sequence[Compared], metric: str, target: float | None) -> Svg:
    """Return a picture of the times to the target, or of the best value by time without one."""
    if target is None:
        return _draw_best(results, metric)
    from dasktune.report.times import Times, draw_times

    times = [
        Times(
            name=result.name,
            workers=result.workers,
            seconds=tuple(repeat.seconds_to for repeat in result.repeats),
        )
        for result in results
    ]
    return draw_times(times, target=f"{metric} {target:g}")


def _draw_best(results: Sequence[Compared], metric: str) -> Svg:
    """Return the best value by time: the median of each tuner, and its runs behind."""
    from dasktune.report.curves import PlottedCurve, draw_curves

    medians = [
        PlottedCurve(
            points=_stairs(result.median_line(), max(run.seconds for run in result.repeats)),
            name=result.name,
        )
        for result in results
    ]
    runs = [
        PlottedCurve(
            points=_stairs([(at, value) for at, _, value in run.incumbents], run.seconds),
            name=result.name,
        )
        for result in results
        for run in result.repeats
    ]
    heading = f"best {metric} by virtual time"
    return draw_curves(
        medians,
        runs if len(results[0].repeats) > 1 else [],
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
