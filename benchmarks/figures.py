"""Figures with bounds, as a table and as JSON: the common part of all benchmarks."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dasktune.trainer.check_switch import SWITCH

PACKAGES = ("dasktune", "dask", "distributed", "numpy", "optuna", "sqlalchemy", "torch", "zarr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number.

    Parameters
    ----------
    name
        What was measured.
    value
        The number, in `unit`.
    unit
        ``s``, ``ms``, ``us``, ``MiB``, ``steps``, ``x`` for a ratio.
    at_most
        The value must not be larger.
    equals
        The value must be this one, exactly.
    note
        How it came about.
    """

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    equals: float | None = None
    note: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the value is within its bound; None without a bound."""
        if self.equals is not None:
            return self.value == self.equals
        return None if self.at_most is None else self.value <= self.at_most

    @property
    def bound(self) -> str:
        """The bound in words."""
        if self.equals is not None:
            return f"= {_number(self.equals)}"
        return "" if self.at_most is None else f"<= {_number(self.at_most)}"

    def to_json(self) -> dict[str, object]:
        """Return the figure as a JSON document."""
        return {**asdict(self), "reached": self.reached}


Measure = Callable[..., list[Figure]]
"""Measures; the argument asks for a short version, which is held to counts, not to times."""


def main(
    name: str,
    measure: Measure,
    *,
    arguments: Sequence[str] | None = None,
    parts: Sequence[str] = (),
    **paths: str,
) -> int:
    """Run a benchmark from the command line; return 1 if it missed a bound, else 0.

    Parameters
    ----------
    name
        Its name, as it stands in the document.
    measure
        What is run.
    arguments
        Those of the command line; None reads them.
    parts
        The names of its parts, of which ``--parts`` chooses some; `measure` receives these as
        its argument `parts`. Empty if it is always measured as a whole.
    paths
        Further options, and what each is for. They are paths that `measure` takes by name,
        None where nothing was given.
    """
    parser = argparse.ArgumentParser(prog=f"{name}.py")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--short", action="store_true", help="try it on something small")
    for path, purpose in paths.items():
        parser.add_argument(f"--{path}", type=Path, help=purpose)
    if parts:
        parser.add_argument("--parts", nargs="+", choices=parts, default=parts, help="only these")
    options = parser.parse_args(arguments)
    os.environ.setdefault(SWITCH, "off")  # what is measured has no check in it
    before = os.getloadavg()[0]
    given = [*paths, *(["parts"] if parts else [])]
    figures = measure(options.short, **{name: getattr(options, name) for name in given})
    more = {"machine": {**machine(), "load_before": before}}
    return publish(name, figures, short=options.short, path=options.json, more=more)


def publish(
    name: str,
    figures: list[Figure],
    *,
    short: bool,
    path: Path | None,
    more: Mapping[str, object],
) -> int:
    """Print the figures of a benchmark and write them; return 1 if one missed its bound, else 0.

    Parameters
    ----------
    name
        Of the benchmark.
    figures
        What was measured.
    short
        Whether it was a short version, which has no bounds but counts.
    path
        Where the document is written; nowhere if None.
    more
        What else it says.
    """
    if short:
        figures = [replace(figure, at_most=None) for figure in figures]
    Console().print(table(name, figures))
    if path is not None:
        documents = [figure.to_json() for figure in figures]
        document = {"benchmark": name, "short": short, "figures": documents, **more}
        path.write_text(json.dumps(document, indent=2) + "\n")
    return int(any(figure.reached is False for figure in figures))


def machine() -> dict[str, object]:
    """Return the machine and the versions on which the figures were measured."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: known for name in PACKAGES if (known := _version(name))},
    }


def table(title: str, figures: Iterable[Figure]) -> Table:
    """Return the figures as a table for a terminal."""
    made = Table(title=title, title_justify="left")
    for column in ("figure", "value", "bound", "reached", "note"):
        made.add_column(column, justify="right" if column in ("value", "bound") else "left")
    for figure in figures:
        made.add_row(*row(figure))
    return made


def row(figure: Figure) -> tuple[str, str, str, str, str]:
    """Return a figure's line in a table."""
    reached = {True: "yes", False: "NO", None: ""}[figure.reached]
    value = f"{_number(figure.value)} {figure.unit}".strip()
    return figure.name, value, figure.bound, reached, figure.note


def _number(value: float) -> str:
    if math.isfinite(value) and value == int(value):
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
