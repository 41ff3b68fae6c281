"""A trial's model as a file, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dasktune.report.formats import count
from dasktune.storage.retention import size_text
from dasktune.study.trial_state import chosen_step
from dasktune.types import Step

if TYPE_CHECKING:
    from dasktune.study.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written.

    Parameters
    ----------
    path
        Where it is.
    trial, step
        Whose state it is, and after how many steps.
    nbytes
        Size of the file.
    """

    path: Path
    trial: int
    step: Step
    nbytes: int

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON document."""
        return {
            "path": str(self.path),
            "trial": self.trial,
            "step": self.step,
            "nbytes": self.nbytes,
        }

    def __str__(self) -> str:
        what = f"trial {self.trial} after {count(self.step, 'step')}"
        return f"{self.path}: {what}, {size_text(self.nbytes)}"


def export_state(
    study: Study, trial: int | None, path: Path, *, step: Step | None, only: str | None
) -> Exported:
    """Write the state of a trial (`dasktune.study.study.Study.export`); say what was written.

    Parameters
    ----------
    trial
        Which one; the best one if None.
    """
    number = study.best_trial.number if trial is None else trial
    chosen = chosen_step(study.records, number, step)
    written = study.export(number, path, step=chosen, only=only)
    return Exported(path=written, trial=number, step=chosen, nbytes=written.stat().st_size)
