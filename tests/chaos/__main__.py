"""The command ``chaos``: a study on real processes that are killed, paused and cut off."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dasktune._driver.retention import kept_ends
from dasktune.errors import DasktuneError, unknown
from dasktune.trainer.check_switch import SWITCH

if TYPE_CHECKING:
    from dasktune._study.study import Study
    from dasktune.algos.base import Tuner
    from tests.chaos.session import Case, Result

NOT_EXACTLY = "when it happens is random, so another run of this seed may go otherwise"


def chaos(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Study file; a study of our own if not given."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="KEY=VALUE", help="As for run. May be repeated."),
    ] = None,
    tuner: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Without FILE: which of grid, sha, asha and pbt take turns; all if not given.",
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="How many runs.")] = 4,
    kills: Annotated[int, typer.Option(min=0, help="Processes that are killed in each.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Of the first run; the next has one more.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    gap: Annotated[
        float, typer.Option(min=0.2, help="Mean time between two faults, in seconds.")
    ] = 1.7,
    limit: Annotated[
        float, typer.Option(min=1, help="A run hangs that has not ended after so many seconds.")
    ] = 300.0,
    only: Annotated[
        str | None, typer.Option(metavar="FAULT,...", help="Let only these happen.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a study, or dasktune itself, on real processes to which everything happens.

    Workers, the scheduler and the driver are killed, paused and cut off at random times, and
    started again. Then every state and metric is compared bit for bit with lone runs, and
    what was reported and decided with an undisturbed run or a replay. The study's own storage
    is not touched. Exit code 1 if anything does not hold.
    """
    from tests.chaos.faults import FAULTS
    from tests.chaos.session import Terms
    from tests.chaos.session import chaos as run_one

    os.environ.setdefault(SWITCH, "off")  # the trainer's steps are the witness's to count
    os.environ.setdefault(kept_ends.SWITCH, "off")  # every last state is compared
    names = tuple(FAULTS) if only is None else tuple(only.split(","))
    _check("fault", names, FAULTS)
    cases = _cases(file, tuple(config or ()), tuner)
    terms = Terms(kills=kills, workers=workers, gap=gap, seconds=limit, only=names)
    found: list[Result] = []
    for number in range(runs):
        found.append(run_one(cases[number % len(cases)], seed + number, terms, open_left))
        if not as_json:
            _tell(found[-1])
    if as_json:
        typer.echo(json.dumps([one.to_json() for one in found], indent=2))
    else:
        good = sum(not one.problems for one in found)
        typer.echo(f"{good} of {len(found)} runs ended as undisturbed ones")
    if any(one.problems for one in found):
        raise typer.Exit(1)


def _cases(file: Path | None, settings: tuple[str, ...], tuner: str | None) -> list[Case]:
    from tests.chaos.builtin import TUNERS
    from tests.chaos.session import Case

    if file is not None:
        if tuner is not None:
            raise typer.BadParameter("--tuner is for our own study, not for one of a FILE")
        from dasktune.cli.study_file import load

        try:
            load(file, settings)  # before anything starts
        except DasktuneError as error:
            raise typer.BadParameter(str(error)) from None
        return [Case(name=file.name, file=file, settings=settings)]
    names = list(TUNERS) if tuner is None else tuner.split(",")
    _check("tuner", names, TUNERS)
    return [Case.builtin(name, *settings) for name in names]


def _check(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise typer.BadParameter(unknown(kind, name, known))


def open_left(path: Path) -> tuple[Study, Tuner]:
    """Return the study that a run has left behind, and its tuner."""
    from dasktune.cli.study_file import load

    loaded = load(path)
    return loaded.study(), loaded.tuner()


def _tell(one: Result) -> None:
    course, found = one.course, one.findings
    verdict = "failed" if one.problems else "as undisturbed"
    line = f"seed {one.seed}, {one.case.name}: {verdict}; {course.seconds:.0f} s, "
    line += f"{course.kills} kills, {len(course.done) - course.kills} other faults"
    if found is not None:
        line += f"; {found.steps:,} steps, {found.repeated:,} repeated"
    typer.echo(line)
    if not one.problems:
        return
    lines = ["what was done (" + NOT_EXACTLY + "):", *map(str, course.done)]
    lines += ["what ended by itself:", *course.ends] if course.ends else []
    lines += ["what does not hold:", *one.problems, f"all that is left: {one.folder}"]
    typer.echo("\n".join(f"  {line}" for line in lines), err=True)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(chaos)

if __name__ == "__main__":
    app()
