"""The command ``export``: write the model of a trial, or a study for Optuna."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dasktune._words import counted
from dasktune.cli.options import open_results
from dasktune.errors import ConfigurationError
from dasktune.storage.redaction import redacted
from dasktune.storage.retention import size_text
from dasktune.types import Step

if TYPE_CHECKING:
    from dasktune._study.study import Study
    from dasktune.cli.ls import Places


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """The file to write, and the state that it gets: None leaves a choice to the defaults."""

    out: Path | None = None
    trial: int | None = None
    step: str | None = None
    only: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A file with the state of a trial.

    Parameters
    ----------
    trial, step
        The trial, and the number of steps that it was trained.
    nbytes
        Size of the file, in bytes.
    """

    path: Path
    trial: int
    step: Step
    nbytes: int

    def to_json(self) -> dict[str, object]:
        """Return a JSON document."""
        return {**asdict(self), "path": str(self.path)}

    def __str__(self) -> str:
        steps = counted(self.step, "step")
        return f"{self.path}: trial {self.trial} after {steps}, {size_text(self.nbytes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedStudy:
    """A study that was written into an Optuna storage."""

    study: str
    optuna: str
    trials: int

    def to_json(self) -> dict[str, object]:
        """Return a JSON document."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.optuna}: study {self.study!r}, {counted(self.trials, 'trial')}"


def export_state(study: Study, model: ModelFile) -> Exported:
    """Write the state of a trial, the best one if none is given, and return what was written.

    Raises
    ------
    ConfigurationError
        If the step is neither a number nor ``best``, or as `dasktune.Study.export`.
    """
    step = model.step
    wanted = int(step) if step is not None and step.isdecimal() and step.isascii() else step
    number, chosen = study.chosen_state(model.trial, wanted)
    out = Path("model.pt") if model.out is None else model.out
    written = study.export(number, out, step=chosen, only=model.only)
    return Exported(path=written, trial=number, step=chosen, nbytes=written.stat().st_size)


def export_study(places: Places, url: str, model: ModelFile) -> ExportedStudy:
    """Write a study into an Optuna storage, and return what was written.

    Raises
    ------
    ConfigurationError
        If options of a model are given, or as `dasktune.Study.optuna_study`.
    """
    if model != ModelFile():
        raise ConfigurationError(
            "--optuna writes all trials; leave out --out, --trial, --step and --only"
        )
    with open_results(places) as results:
        trials = results.optuna_study(url).trials
        return ExportedStudy(study=results.name, optuna=redacted(url), trials=len(trials))
