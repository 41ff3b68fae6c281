"""Packages of workers: what must be the same wherever stages of one study run."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping

import dasktune

Versions = Mapping[str, str | None]
"""Version by package; None for what is not installed."""

NAMES = {"dasktune": "dasktune", "python": "Python", "numpy": "NumPy", "torch": "torch"}
"""Names of the packages that are compared, in words."""


def probe() -> Callable[[], dict[str, str | None]]:
    """Return a function that gives the versions of its process.

    It is made here so that it travels by value: dasktune may be missing where it runs.
    """

    def versions() -> dict[str, str | None]:
        import platform
        from importlib import import_module, metadata

        installed: dict[str, str | None] = {"python": platform.python_version()}
        for package in ("numpy", "torch"):
            try:
                installed[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                installed[package] = None
        try:
            # A folder named dasktune is a module, too, but without a version.
            installed["dasktune"] = getattr(import_module("dasktune"), "__version__", None)
        except ImportError:
            installed["dasktune"] = None
        return installed

    return versions


def compare(
    by_worker: Mapping[str, Versions], *, is_exact: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Return the problems about the versions of workers, and the warnings by package.

    All must have the driver's dasktune and Python, and the same NumPy and torch: else it depends
    on the worker what a step gives. Another patch number is a warning, unless `is_exact`.

    Examples
    --------
    >>> versions = {"dasktune": None, "python": None, "numpy": "2.4.6", "torch": None}
    >>> workers = {"w1": versions, "w2": {**versions, "numpy": "2.4.5"}}
    >>> compare(workers)[1]["numpy"]
    'workers have different patch versions of NumPy: 2.4.5 on w2; 2.4.6 on w1'
    >>> compare(workers, is_exact=True)[0][-1]
    'all workers must have the same NumPy: 2.4.5 on w2; 2.4.6 on w1'
    """
    problems, warnings = list[str](), dict[str, str]()
    own = {"dasktune": dasktune.__version__, "python": platform.python_version()}
    for package, name in NAMES.items():
        needed = own.get(package)
        workers: dict[str | None, list[str]] = {} if needed is None else {needed: []}
        for worker, versions in by_worker.items():
            workers.setdefault(versions[package], []).append(worker)
        if len(workers) < 2:
            continue
        words = "; ".join(
            f"{version or 'none'} on {', '.join(sorted(those))}"
            for version, those in sorted(workers.items(), key=str)
            if version != needed or needed is None
        )
        if not is_exact and len(set(map(_series, workers))) == 1:
            beside = "" if needed is None else f"; the driver has {needed}"
            warnings[package] = f"workers have different patch versions of {name}: {words}{beside}"
        elif needed is None:
            problems.append(f"all workers must have the same {name}: {words}")
        else:
            least = needed if is_exact else _series(needed)
            problems.append(f"all workers must have {name} {least}, got {words}")
    return problems, warnings


def _series(version: str | None) -> str:
    """Return a version without its patch number; what a build is for counts, as in 2.13+cpu.

    >>> _series("2.13.0+cpu"), _series("3.14.0rc1"), _series(None)
    ('2.13+cpu', '3.14', 'none')
    """
    numbers, plus, build = (version or "none").partition("+")
    return ".".join(numbers.split(".")[:2]) + plus + build
