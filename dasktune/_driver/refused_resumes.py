"""Resumes that were refused: the trainer that loaded a state was not the one that saved it.

The lineage of the state goes on alone, from step 0: no trial of it resumes. Other lineages go on
as before. After a second lineage the study merges nothing: the cause lies in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dasktune._driver.history import History
from dasktune._engine.tuner_records import Document
from dasktune.errors import TrainerError
from dasktune.trainer.base import is_harmless
from dasktune.types import Step

REFUSED = "refused"
"""Kind of the note that a refused resume leaves in a study."""

MOST_LINEAGES = 1
"""Lineages that are trained alone; after one more, all are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedResume:
    """One lineage whose state could not be resumed."""

    lineage: str
    """Its values at step 0 and its seed; see `dasktune._engine.trials.lineage_of`."""
    trials: tuple[int, ...]
    """The trials of the lineage that go through the state."""
    step: Step
    """The step of the state."""
    text: str
    """What differs, in words, and what to write."""
    paths: tuple[str, ...]
    """The parts that differ."""


class ResumeRefusedError(TrainerError):
    """Resumes of a run were refused: their lineages must go on alone."""

    def __init__(self, refused: Iterable[RefusedResume]) -> None:
        self.refused = tuple(refused)
        super().__init__("\n".join(each.text for each in self.refused))


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneRule:
    """Which trials of a study are trained alone from now on."""

    is_all: bool = False
    """Whether all are."""
    lineages: frozenset[str] = frozenset()
    """The lineages that are, if not all are."""

    def __bool__(self) -> bool:
        return self.is_all or bool(self.lineages)


def refused_of(history: History) -> list[Document]:
    """Return the notes of refused resumes, oldest first."""
    return history.notes(REFUSED)


def alone_rule(notes: Iterable[Document], harmless: tuple[str, ...]) -> AloneRule:
    """Return which trials go on alone.

    What differed only in parts that the trainer names as harmless by now is merged again.
    """
    lineages = frozenset(
        note["lineage"]
        for note in notes
        if not note["paths"] or not all(is_harmless(path, harmless) for path in note["paths"])
    )
    return AloneRule(is_all=len(lineages) > MOST_LINEAGES, lineages=lineages)


def note_refused(history: History, run: str, refused: RefusedResume) -> None:
    """Write down a refused resume."""
    history.note(
        REFUSED,
        run=run,
        lineage=refused.lineage,
        trials=list(refused.trials),
        step=refused.step,
        text=refused.text,
        paths=list(refused.paths),
    )
