"""The command ``predict``: what a trial will come to, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dasktune.cli.options import AsJson, Config, picture_problems, print_json
from dasktune.errors import refuse

if TYPE_CHECKING:
    from dasktune.results.prediction import Outlook
    from dasktune.results.results import StudyResults

LEAST_CHANCE = 0.05
"""With a smaller probability nothing is said of when a target is reached."""


def predict(
    target: Annotated[
        str,
        typer.Argument(
            metavar="STUDY", help="Study file, storage folder or URL, or a database's file or URL."
        ),
    ],
    trial: Annotated[int, typer.Option(metavar="N", help="Which trial.")],
    reach: Annotated[
        float | None,
        typer.Option(
            "--target",
            metavar="VALUE",
            help="A value to be reached, in the metric's own unit; if not given, the target of "
            "the trial's tuner, if that has one.",
        ),
    ] = None,
    step: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            help="A future step, also beyond the trial's end; if none is given, those up to there. "
            "May be repeated.",
        ),
    ] = None,
    low: Annotated[
        float | None,
        typer.Option(
            metavar="VALUE",
            help="The lowest value that the metric can have, such as 0 for a loss: no prediction "
            "goes below it.",
        ),
    ] = None,
    high: Annotated[
        float | None,
        typer.Option(metavar="VALUE", help="The highest one, such as 1 for an accuracy."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The hyper-parameter that is the learning rate, if not lr or learning_rate: "
            "how it goes on is taken into account.",
        ),
    ] = None,
    predictor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Who predicts: PriorFitted, if none is named, Persistence or CurveEnsemble.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Also draw the fan, as SVG.")
    ] = None,
    study: Annotated[str | None, typer.Option(help="The study of this name.")] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="The store of a database.")
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="The database of a store.")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Say what a trial will come to, and how sure that is.

    Rests on all that was measured on its way, by whatever trial, and on those that begin alike.
    Reads store and database, and changes nothing: also while the study runs.
    """
    from dasktune.cli.ls import places_of
    from dasktune.cli.reading import one_study

    refuse(picture_problems(plot))
    places = places_of(
        target, storage=storage, database=database, study=study, settings=config or ()
    )
    with one_study(places) as results:
        found = results.predict(
            trial,
            steps=sorted(set(step)) if step else None,
            predictor=predictor,
            bounds=(low, high),
            rate=rate,
        )
        reach = _target_of(results, trial) if reach is None else reach
    document = found.to_json(reach)
    if plot is not None:
        from dasktune.report.fan import draw_fan

        draw_fan(found, target=reach).save(plot)
    if as_json:
        print_json(document)
    else:
        typer.echo(in_words(found, reach))


def in_words(outlook: Outlook, target: float | None) -> str:
    """Return an outlook as people read it: a table of the fan, and what is said of a target."""
    from dasktune.cli.results import shown, table
    from dasktune.report.formats import printable
    from dasktune.results.prediction import INTERVALS
    from dasktune.types import Direction

    step, value = outlook.measured[-1]
    lines = [
        f"trial {outlook.trial}: {printable(outlook.metric)} {shown(value)} at step {step:,} of "
        f"{outlook.curve.max_steps:,} ({outlook.direction.value})"
    ]
    header = ["step", "median", *(f"{one:.0%}" for one in INTERVALS)]
    columns = [
        [f"{low:.4g} to {high:.4g}" for low, high in outlook.interval(one)] for one in INTERVALS
    ]
    rows = [
        [f"{at:,}", f"{median:.4g}", *cells]
        for at, median, *cells in zip(outlook.steps, outlook.medians, *columns, strict=True)
    ]
    if target is not None:
        sign = ">=" if outlook.direction is Direction.MAXIMIZE else "<="
        header.append(f"P({sign} {shown(target)})")
        for row, chance in zip(rows, outlook.chances(target), strict=True):
            row.append(f"{chance:.2f}")
    lines += table(header, rows)
    return "\n".join(lines if target is None else [*lines, of_target(outlook, target)])


def of_target(outlook: Outlook, target: float) -> str:
    """Return in words whether a trial reaches a target, and when if that is likely enough."""
    from dasktune.cli.results import shown
    from dasktune.report.formats import count, duration

    reached, steps = outlook.reached(target), outlook.expected_steps(target)
    if reached is not None:
        return f"reached {shown(target)} already, at step {reached:,}"
    if steps is None:
        return f"cannot reach {shown(target)} by step {outlook.steps[-1]:,}"
    chance = outlook.chance(target)
    words = f"reaches {shown(target)} with probability {chance:.2f}"
    if chance < LEAST_CHANCE:
        return words
    seconds = outlook.expected_seconds(target)
    time = "" if seconds is None else f" (ERT {duration(seconds)})"
    return f"{words}, expected after {count(round(steps), 'more step')}{time}"


def _target_of(results: StudyResults, trial: int) -> float | None:
    """Return the target that a trial's tuner was given; None if it has none."""
    found = results.tuners[results.records[trial].tuner].get("target")
    return float(found) if isinstance(found, int | float) else None
