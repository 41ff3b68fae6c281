"""Packages of workers: what must be the same wherever stages of one study run."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping

import dasktune

Versions = Mapping[str, str | None]
"""Version by package; None for what is not installed."""

ALIKE = ("numpy", "torch")
"""What must be the same on all workers: else it depends on the worker what a step gives."""


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


def problems_of_worker(worker: str, versions: Versions) -> list[str]:
    """Return the problems of a worker's versions of dasktune and Python."""
    there, here = versions["dasktune"], dasktune.__version__
    if there is None:
        return [f"worker {worker} must have dasktune installed, and it has not"]
    problems = []
    if there != here:
        problems.append(f"worker {worker} must have dasktune {here}, it has {there}")
    python, minor = str(versions["python"]), _minor(platform.python_version())
    if _minor(python) != minor:
        problems.append(f"worker {worker} must have Python {minor}, it has {python}")
    return problems


def differences(by_worker: Mapping[str, Versions]) -> list[str]:
    """Return the packages whose versions differ between workers, in words."""
    problems = []
    for package in ALIKE:
        workers: dict[str | None, list[str]] = {}
        for worker, versions in by_worker.items():
            workers.setdefault(versions[package], []).append(worker)
        if len(workers) > 1:
            words = "; ".join(
                f"{version or 'none'} on {', '.join(sorted(some))}"
                for version, some in sorted(workers.items(), key=str)
            )
            problems.append(f"all workers must have the same {package}: {words}")
    return problems


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
