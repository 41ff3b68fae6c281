"""Start: how long ``import dasktune`` and ``dasktune --help`` take next to ``import numpy``."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from figures import Figure, main

COMMANDS = {
    "import numpy": ("-c", "import numpy"),
    "import dasktune": ("-c", "import dasktune"),
    "dasktune --help": ("-c", "from dasktune.cli import main; main()", "--help"),
}
BOUNDS = {"import dasktune": 3.0, "dasktune --help": 5.0}
HEAVY = ("torch", "dask", "distributed", "zarr", "optuna")
REPEAT = 15


def measure(short: bool) -> list[Figure]:
    """Start each in turn, many times; compare medians."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(3 if short else REPEAT):
        for name, arguments in COMMANDS.items():
            seconds[name].append(_seconds(arguments))
    middle = {name: median(item) for name, item in seconds.items()}
    numpy = middle["import numpy"]
    figures = [
        Figure(
            name=f"{name}, over import numpy",
            value=middle[name] / numpy,
            unit="x",
            at_most=bound,
            note=f"{middle[name] * 1e3:.0f} ms, numpy {numpy * 1e3:.0f} ms",
        )
        for name, bound in BOUNDS.items()
    ]
    return [*figures, *_heavy_imports()]


def _seconds(arguments: tuple[str, ...]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _heavy_imports() -> list[Figure]:
    """Count the heavy packages that are loaded by an import, and by the help."""
    figures = []
    for module in ("dasktune", "dasktune.cli"):
        code = f"import sys, {module}; print(*(n for n in {HEAVY!r} if n in sys.modules))"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        loaded = done.stdout.split()
        name = f"heavy packages that import {module} loads"
        note = ", ".join(loaded) or f"none of {', '.join(HEAVY)}"
        figures.append(Figure(name=name, value=len(loaded), equals=0, note=note))
    return figures


if __name__ == "__main__":
    sys.exit(main("start", measure))
