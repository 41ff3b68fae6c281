"""The command ``export``: write the model of a trial to a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dasktune.storage.retention import size_text
from dasktune.types import Step
from dasktune.words import counted

if TYPE_CHECKING:
    from dasktune.study.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A file with the state of a trial.

    Parameters
    ----------
    path
        The file.
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


def export_state(
    study: Study, trial: int | None, path: Path, *, step: str | None, only: str | None
) -> Exported:
    """Write the state of a trial, the best one if None, and return what was written.

    Raises
    ------
    ConfigurationError
        If `step` is neither a number nor ``best``, or as `dasktune.Study.export`.
    """
    wanted = int(step) if step is not None and step.isdecimal() and step.isascii() else step
    number, chosen = study.chosen_state(trial, wanted)
    written = study.export(number, path, step=chosen, only=only)
    return Exported(path=written, trial=number, step=chosen, nbytes=written.stat().st_size)
