"""The contents of installed packages, for fingerprints that ask for the same packages."""

from __future__ import annotations

import csv
import hashlib
import importlib
import os
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from dasktune.trainer.fingerprint.data import json_digest

IN_ENVIRONMENT = frozenset({"dasktune", "numpy", "torch"})
"""Packages whose versions the recorded environment names."""


@cache
def installed_digest(package: str) -> str:
    """Return a digest of the version and of the files of an installed package.

    The files count by the checksums that its distribution lists, so that a package that was
    installed again under the same version is another one. Without such a list its source files
    are read. The digest is the same on all machines that have the same files.
    """
    names = sorted(set(distributions_of_packages().get(package, ())))
    listed = [_listed(name) for name in names]
    return json_digest(listed if any(files for _, files in listed) else [names, _read(package)])


@cache
def distributions_of_packages() -> dict[str, list[str]]:
    """Return the distributions that hold each top-level package."""
    return dict(metadata.packages_distributions())


def _listed(name: str) -> tuple[str, list[list[str]]]:
    """Return the version of a distribution, and the checksums of its files by name."""
    distribution = metadata.distribution(name)
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    # Scripts and notes of the installer differ between machines.
    files = [row[:2] for row in rows if len(row) > 1 and row[1] and _is_of_package(row[0])]
    return distribution.version, sorted(files)


def _is_of_package(file: str) -> bool:
    top = file.partition("/")[0]
    return top != ".." and not top.endswith((".dist-info", ".data"))


def _read(package: str) -> list[tuple[str, str]]:
    """Return the checksums of the source files of a package that no distribution lists."""
    importlib.invalidate_caches()
    spec = find_spec(package)
    if spec is None:
        return []
    return [
        (name, hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest())
        for name, path in sorted(_sources(list(spec.submodule_search_locations or ()), spec.origin))
    ]


def _sources(folders: list[str], file: str | None) -> Iterator[tuple[str, Path]]:
    for folder in map(Path, folders):
        for path in folder.rglob("*.py"):
            yield path.relative_to(folder).as_posix(), path
    if not folders and file is not None and os.path.isfile(file):
        yield os.path.basename(file), Path(file)
