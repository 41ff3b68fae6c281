"""The command ``predict``: the future values of a trial's metric, with their uncertainty."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dasktune.cli.options import (
    AsJson,
    StoreFlags,
    flat,
    open_results,
    picture_problems,
    print_json,
)
from dasktune.errors import refuse

if TYPE_CHECKING:
    from dasktune._results.prediction import Checks, TrialPrediction
    from dasktune._results.results import StudyResults

LEAST_CHANCE = 0.05
"""The text gives the expected time to a target only from this probability on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionFlags:
    """The arguments of `dasktune._results.results.StudyResults.predict`."""

    step: Annotated[
        list[int] | None,
        typer.Option(
            metavar="N",
            help="A future step, also beyond the trial's end; if none is given, those up to there. "
            "May be repeated.",
        ),
    ] = None
    low: Annotated[
        float | None,
        typer.Option(
            metavar="VALUE",
            help="The lowest value that the metric can have, such as 0 for a loss: no prediction "
            "goes below it.",
        ),
    ] = None
    high: Annotated[
        float | None,
        typer.Option(metavar="VALUE", help="The highest one, such as 1 for an accuracy."),
    ] = None
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The hyper-parameter that is the learning rate, if not lr or learning_rate: "
            "how it goes on is taken into account.",
        ),
    ] = None
    predictor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Who predicts: Mixture, if none is named, CurveEnsemble, Persistence, "
            "or PriorFitted.",
        ),
    ] = None

    def predict(self, results: StudyResults, trial: int) -> TrialPrediction:
        """Return the prediction for a trial."""
        return results.predict(
            trial,
            steps=sorted(set(self.step)) if self.step else None,
            predictor=self.predictor,
            bounds=(self.low, self.high),
            rate=self.rate,
        )

    def check(self, results: StudyResults) -> Checks | None:
        """Return how often the last predictions held; None for a named one, which may be slow."""
        if self.predictor is not None:
            return None
        return results.check_predictions(bounds=(self.low, self.high), rate=self.rate)


@flat
def predict(
    target: Annotated[
        str,
        typer.Argument(
            metavar="STUDY", help="Study file, storage folder or URL, or a database's file or URL."
        ),
    ],
    trial: Annotated[int, typer.Option(metavar="N", help="Which trial.")],
    *,
    reach: Annotated[
        float | None,
        typer.Option(
            "--target",
            metavar="VALUE",
            help="A value to be reached, in the metric's own unit; if not given, the target of "
            "the trial's tuner, if that has one.",
        ),
    ] = None,
    flags: PredictionFlags,
    plot: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Also draw the fan, as SVG.")
    ] = None,
    study: Annotated[str | None, typer.Option(help="The study of this name.")] = None,
    stores: StoreFlags,
    as_json: AsJson = False,
) -> None:
    """Predict the metric of a trial, and how sure that is.

    Rests on all that was measured on its way, by whatever trial, and on those that begin alike.
    Reads store and database, and changes nothing: also while the study runs.
    """
    refuse(picture_problems(plot))
    with open_results(stores.places(target, study)) as results:
        prediction = flags.predict(results, trial)
        checks = flags.check(results)
        reach = _target_of(results, trial) if reach is None else reach
    document = prediction.to_json(reach)
    if checks is not None:
        document["checks"] = asdict(checks)
    if plot is not None:
        from dasktune.report.fan import draw_fan

        draw_fan(prediction, target=reach).save(plot)
    if as_json:
        print_json(document)
    else:
        typer.echo(in_words(prediction, reach))
        if checks is not None:
            typer.echo(of_checks(checks))


def in_words(predicted: TrialPrediction, target: float | None) -> str:
    """Return a prediction as text: a table of the fan, and the chance to reach a target."""
    from dasktune._results.prediction import INTERVALS
    from dasktune.cli.results import shown, table
    from dasktune.report.formats import printable
    from dasktune.types import Direction

    step, value = predicted.measured[-1]
    lines = [
        f"trial {predicted.trial}: {printable(predicted.metric)} {shown(value)} at step {step:,} "
        f"of {predicted.curve.max_steps:,} ({predicted.direction.value})"
    ]
    header = ["step", "median", *(f"{part:.0%}" for part in INTERVALS)]
    columns = [
        [f"{low:.4g} to {high:.4g}" for low, high in predicted.interval(part)] for part in INTERVALS
    ]
    rows = [
        [f"{at:,}", f"{median:.4g}", *cells]
        for at, median, *cells in zip(predicted.steps, predicted.medians, *columns, strict=True)
    ]
    if target is not None:
        sign = ">=" if predicted.direction is Direction.MAXIMIZE else "<="
        header.append(f"P({sign} {shown(target)})")
        for row, chance in zip(rows, predicted.chances(target), strict=True):
            row.append(f"{chance:.2f}")
    lines += table(header, rows)
    return "\n".join(lines if target is None else [*lines, of_target(predicted, target)])


def of_checks(checks: Checks) -> str:
    """Return in words how often predictions of the study held."""
    if not checks.predictions:
        return "no prediction of this study can be checked yet"
    return (
        f"the 80% band held in {checks.held} of the last {checks.predictions} predictions of this "
        "study that can be checked"
    )


def of_target(predicted: TrialPrediction, target: float) -> str:
    """Return a sentence on whether a trial reaches a target, and when if that is likely."""
    from dasktune._words import counted
    from dasktune.cli.results import shown
    from dasktune.report.formats import duration

    reached, steps = predicted.reached(target), predicted.expected_steps(target)
    if reached is not None:
        return f"reached {shown(target)} already, at step {reached:,}"
    if steps is None:
        return f"cannot reach {shown(target)} by step {predicted.steps[-1]:,}"
    chance = predicted.chance(target)
    words = f"reaches {shown(target)} with probability {chance:.2f}"
    if chance < LEAST_CHANCE:
        return words
    seconds = predicted.expected_seconds(target)
    time = "" if seconds is None else f" (ERT {duration(seconds)})"
    return f"{words}, expected after {counted(round(steps), 'more step')}{time}"


def _target_of(results: StudyResults, trial: int) -> float | None:
    """Return the target of a trial's tuner, if it has one."""
    target = results.tuners[results.records[trial].tuner].get("target")
    return float(target) if isinstance(target, int | float) else None
