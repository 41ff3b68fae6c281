"""CSV files: each trial of a study as a folder with its metrics and its hyper-parameters.

A file of metrics has a row a step, and is only appended to, unless a metric is new. When a study
goes on after a crash, the file itself says which steps it has. A last row that was cut short is
removed.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dasktune._study.folder import from_folder
from dasktune.errors import ConfigurationError, StorageError, shown
from dasktune.mirror import LoggedStudy, Logger, TrialRun
from dasktune.storage.layout import slug
from dasktune.types import Step

__all__ = ["CSVFiles"]

METRICS: Final = "metrics.csv"
ABOUT: Final = "trial.json"
HYPER_PARAMETER: Final = "hp/"
"""Before the names of hyper-parameters that change over the steps."""


@dataclass(frozen=True)
class CSVFiles(Logger):
    """Writes each trial to a folder: ``metrics.csv`` and ``trial.json``.

    The folders are ``<folder>/<name of the study>/trial-0000``, and so on. ``metrics.csv`` has
    the metrics of each step that no other folder has, and the values of changing hyper-parameters
    as ``hp/<name>``. ``trial.json`` has what was sampled, the state, and the trials with the shared
    steps.

    Parameters
    ----------
    folder
        A local folder. A relative one is in that of the study file.

    Raises
    ------
    ConfigurationError
        If the folder is a URL.

    Examples
    --------
    ``create_study(..., loggers=[CSVFiles("logs")])``
    """

    folder: str | os.PathLike[str]

    def __post_init__(self) -> None:
        given = self.folder
        if not isinstance(given, str | os.PathLike) or not str(given) or "://" in str(given):
            raise ConfigurationError(
                f"the folder of CSVFiles must be a local folder, got {shown(given)}"
            )

    def open(self, study: LoggedStudy) -> CSVRuns:
        """Open the folder of a study, and read which steps its files have.

        Raises
        ------
        ConfigurationError
            If it has trials of another study of that name.
        StorageError
            If it cannot be read.
        """
        folder = Path(from_folder(study.folder, os.fspath(self.folder))).expanduser()
        try:
            return CSVRuns(folder / slug(study.name), study)
        except OSError as error:
            raise StorageError(f"cannot use {folder} for CSV files: {error}") from error


@dataclass(slots=True)
class _MetricsFile:
    """The columns and the steps that the file of a run has, and what stands beside it."""

    columns: list[str] = field(default_factory=list)
    steps: set[Step] = field(default_factory=set)
    about: Mapping[str, Any] = field(default_factory=dict)


class CSVRuns:
    """The files of one study in a folder.

    Parameters
    ----------
    folder
        The folder of the study; it is created.
    study
        The study.
    """

    def __init__(self, folder: Path, study: LoggedStudy) -> None:
        self._folder = folder
        self._files: dict[str, _MetricsFile] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob(f"trial-*/{ABOUT}")):
            about = json.loads(path.read_text())
            if not str(about["id"]).startswith(f"{study.id}-"):
                raise ConfigurationError(
                    f"{folder} must have trials of this study {study.name!r} only, got "
                    f"{path.parent.name} of another one of that name: remove the folder, or "
                    "use another one"
                )
            self._files[about["id"]] = _read(path.parent, about)

    @property
    def written(self) -> Mapping[str, set[Step]]:
        """The steps that files have, by identifier of the run."""
        return {identifier: set(file.steps) for identifier, file in self._files.items()}

    def write(self, run: TrialRun) -> None:
        """Append to the file of a run, and say how the trial is."""
        file, folder = self._files.setdefault(run.id, _MetricsFile()), self._folder / run.name
        folder.mkdir(exist_ok=True)
        about = {"id": run.id, "params": dict(run.params), "values": dict(run.values), **run.tags()}
        if about != file.about:
            file.about = about
            _replace(folder / ABOUT, json.dumps(about, indent=2))
        rows = [
            {"step": step, **metrics, **_named(run.hp.get(step, {}))}
            for step, metrics in sorted(run.metrics.items())
            if step not in file.steps
        ]
        if rows:
            _append(folder / METRICS, file, rows)

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{HYPER_PARAMETER}{name}": value for name, value in values.items()}


def _append(path: Path, file: _MetricsFile, rows: list[dict[str, Any]]) -> None:
    """Append rows; rows with a new column need the whole file anew."""
    columns = [*dict.fromkeys(name for row in [dict.fromkeys(file.columns), *rows] for name in row)]
    if columns == file.columns:
        with path.open("a", newline="") as opened:
            csv.DictWriter(opened, columns).writerows(rows)
    else:
        known: list[dict[str, Any]] = []
        if file.steps:
            with path.open(newline="") as opened:
                known = list(csv.DictReader(opened))
        aside = path.with_suffix(".new")
        with aside.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, columns)
            writer.writeheader()
            writer.writerows([*known, *rows])
        aside.replace(path)
    file.columns = columns
    file.steps.update(row["step"] for row in rows)


def _replace(path: Path, text: str) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(text)
    aside.replace(path)


def _read(folder: Path, about: Mapping[str, Any]) -> _MetricsFile:
    """Return the contents of a file, after removing a last row that was cut short."""
    path = folder / METRICS
    if not path.exists():
        return _MetricsFile(about=about)
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        os.truncate(path, end)
    if not end:
        return _MetricsFile(about=about)
    header, *rows = csv.reader(data[:end].decode().splitlines())
    return _MetricsFile(columns=header, steps={int(row[0]) for row in rows}, about=about)
