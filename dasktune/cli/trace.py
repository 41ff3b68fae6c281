"""The command ``trace``: what a study measured, as a file that `simulate` takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dasktune.cli.options import AsJson, Config, print_json
from dasktune.errors import refuse

if TYPE_CHECKING:
    from dasktune.traces.trace import Trace


def trace(
    target: Annotated[
        str,
        typer.Argument(help="Study file, storage folder or URL, or a database's file or URL."),
    ],
    out: Annotated[
        Path, typer.Option(metavar="PATH", help="Where to: .zarr, .zarr.zip or .npz.")
    ] = Path("trace.zarr"),
    study: Annotated[
        str | None, typer.Option(help="Of this name; may be left out if there is one.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="The store of a database.")
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="The database of a store.")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Write what a study measured, and what it took, as a trace for simulate.

    One configuration for all trials that are the same. It is known as far as its steps were
    trained, by whichever study on the store: less than in full where all ended it early. Reads
    store and database, and changes nothing, also while the study runs.
    """
    from dasktune.cli.ls import places_of
    from dasktune.cli.reading import one_study
    from dasktune.traces.files import target_problems

    refuse(f"--out: {problem}" for problem in target_problems(out))
    places = places_of(
        target, storage=storage, database=database, study=study, settings=config or ()
    )
    with one_study(places) as found:
        made = found.trace()
        path = made.save(out)
        if as_json:
            print_json({"study": found.name, "path": str(path), **_figures(made)})
        else:
            typer.echo(f"{path}: {_in_words(made)}, of study {found.name!r}")
            if path.suffix == ".npz":
                typer.echo(_left_out(made))


def _figures(made: Trace) -> dict[str, object]:
    return {
        "configurations": len(made.configurations),
        "steps": made.steps,
        "complete": made.complete,
        "metrics": list(made.metrics),
        "overheads": made.overheads.to_json(),
    }


def _left_out(made: Trace) -> str:
    """Return what an ``.npz`` does not hold of a study's trace, and how to do without."""
    metric, direction = next(iter(made.directions.items()))
    return (
        "an .npz keeps no direction, overheads or shared steps: "
        f"simulate with --metric {metric} --direction {direction.value}"
    )


def _in_words(made: Trace) -> str:
    from dasktune.report.formats import count

    configurations = count(len(made.configurations), "configuration")
    steps, metrics = count(made.steps, "step"), ", ".join(made.metrics)
    return f"{configurations}, {made.complete} of them with all {steps}; {metrics}"
