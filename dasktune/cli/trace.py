"""The command ``trace``: write the measured curves of a study to a file for `simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dasktune.cli.options import AsJson, StoreFlags, Target, flat, open_results, print_json
from dasktune.errors import refuse

if TYPE_CHECKING:
    from dasktune.traces.trace import Trace


@flat
def trace(
    target: Target,
    *,
    out: Annotated[
        Path, typer.Option(metavar="PATH", help="Where to: .zarr, .zarr.zip or .npz.")
    ] = Path("trace.zarr"),
    study: Annotated[
        str | None, typer.Option(help="Of this name; may be left out if there is one.")
    ] = None,
    stores: StoreFlags,
    as_json: AsJson = False,
) -> None:
    """Write what a study measured, and what it took, as a trace for simulate.

    One configuration for all trials that are the same. It is known as far as its steps were
    trained, by whichever study on the store: less than in full where all ended it early. Reads
    store and database, and changes nothing, also while the study runs.
    """
    from dasktune.traces.files import target_problems

    refuse(f"--out: {problem}" for problem in target_problems(out))
    with open_results(stores.places(target, study)) as results:
        curves = results.trace()
        path = curves.save(out)
        if as_json:
            print_json({"study": results.name, "path": str(path), **_figures(curves)})
        else:
            typer.echo(f"{path}: {_in_words(curves)}, of study {results.name!r}")
            if path.suffix == ".npz":
                typer.echo(_npz_note(curves))


def _figures(curves: Trace) -> dict[str, object]:
    return {
        "configurations": len(curves.configurations),
        "steps": curves.steps,
        "complete": curves.complete,
        "metrics": list(curves.metrics),
        "overheads": curves.overheads.to_json(),
        "classes": list(curves.classes),
    }


def _npz_note(curves: Trace) -> str:
    """Return a note on what an ``.npz`` lacks, with the flags that replace it."""
    metric, direction = next(iter(curves.directions.items()))
    return (
        "an .npz keeps no direction, overheads, shared steps or classes of workers: "
        f"simulate with --metric {metric} --direction {direction.value}"
    )


def _in_words(curves: Trace) -> str:
    from dasktune._words import counted

    configurations = counted(len(curves.configurations), "configuration")
    steps, metrics = counted(curves.steps, "step"), ", ".join(curves.metrics)
    classes = f"; on {', '.join(curves.classes)}" if curves.classes else ""
    return f"{configurations}, {curves.complete} of them with all {steps}; {metrics}{classes}"
