"""Figures with bounds, as a table and as JSON: the common part of all benchmarks."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dasktune.errors import ConfigurationError
from dasktune.trainer.check_switch import SWITCH

PACKAGES = ("dasktune", "dask", "distributed", "numpy", "optuna", "sqlalchemy", "torch", "zarr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured number with its unit, the bound that it must keep, and how it came about."""

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


Measure = Callable[..., Iterable[Figure]]
"""Measures; `short` asks for a short version, which is held to counts, not to times."""


def main(
    name: str,
    measure: Measure,
    arguments: Sequence[str] | None = None,
    **options: Mapping[str, Any],
) -> int:
    """Run a benchmark from the command line; return 1 if it missed a bound, else 0.

    `options` are those that `measure` takes beside `short`, each with the arguments of
    `argparse.ArgumentParser.add_argument`. It returns 2 if `measure` refuses what they ask for.
    """
    parser = argparse.ArgumentParser(prog=f"{name}.py")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--short", action="store_true", help="try it on something small")
    for option, details in options.items():
        parser.add_argument(f"--{option}", **details)
    given = vars(parser.parse_args(arguments))
    os.environ.setdefault(SWITCH, "off")  # what is measured has no check in it
    before, path, is_short = os.getloadavg()[0], given.pop("json"), given["short"]
    try:
        figures = list(measure(**given))
    except ConfigurationError as error:
        sys.stderr.write(f"{name}.py: {error}\n")
        return 2
    if is_short:
        figures = [replace(figure, at_most=None) for figure in figures]
    Console().print(table(name, figures))
    if path is not None:
        document = {
            "benchmark": name,
            "short": is_short,
            "figures": [figure.to_json() for figure in figures],
            "machine": {**machine(), "load_before": before},
        }
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
