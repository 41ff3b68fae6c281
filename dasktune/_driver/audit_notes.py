"""The notes that audits leave in a study: how many there were, and what they found.

After a difference the study does not merge any more. Its notes say so, also to later runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dasktune._driver.history import AUDITED, History
from dasktune._driver.refused_resumes import refused_of
from dasktune._engine.tuner_records import Document
from dasktune._words import counted
from dasktune.errors import TrainerError
from dasktune.graph.audits import AuditCounts
from dasktune.logs import trials_text
from dasktune.types import Step

AUDIT_FAILED = "audit failed"
"""Begins the text of what an audit found."""

RESUMES = "resumes"
"""Kind of the note that a run with audits leaves at its end."""


MOST_TRIALS = 20
"""Trials that a text names."""


class AuditDifferenceError(TrainerError):
    """An audit found a difference, which is recorded: the study must not merge any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFailure:
    """A difference that an audit found: in words, and the steps that the audit trained."""

    text: str
    steps: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFigures:
    """The audits of a study, by their result.

    Examples
    --------
    >>> print(AuditFigures(identical=31, resumes=1204))
    audited 31 of 1,204 resumes: all identical
    """

    identical: int = 0
    differing: int = 0
    not_run: int = 0
    """Drawn and not done. No text for people has it: nothing is missing, since each resume proves
    itself and audits are samples."""
    incomparable: int = 0
    """On workers that compute other bits than those that trained."""
    resumes: int = 0
    """Stages that resumed from a stored state."""
    steps: Step = 0
    refused: int = 0
    """Lineages whose states could not be resumed."""
    differences: tuple[str, ...] = ()
    """What differed, in words."""

    def __str__(self) -> str:
        """Return them in words; empty without any."""
        return ", ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        audited = self.identical + self.differing
        if audited:
            result = f"{self.differing:,} not identical" if self.differing else "all identical"
            resumes = max(audited, self.resumes)
            share = f"{audited:,} of " if resumes > audited else ""
            yield f"audited {share}{counted(resumes, 'resume')}: {result}"
        elif self.incomparable:
            yield "audited no resume"
        if self.incomparable:
            yield (
                f"{self.incomparable:,} could not be compared: the worker computes other bits than "
                "the one that trained"
            )
        if self.refused:
            lineages = counted(self.refused, "lineage")
            yield f"{lineages} could not be resumed, and trained alone"


def named(trials: Iterable[int]) -> str:
    """Return trial numbers in words, of many only the first."""
    numbers = list(trials)
    more = len(numbers) - MOST_TRIALS
    return trials_text(numbers[:MOST_TRIALS]) + (f" and {more:,} more" if more > 0 else "")


def differences_of(history: History) -> list[Document]:
    """Return the notes of audits that found a difference, oldest first.

    A study that has any does not merge.
    """
    return [note for note in _audits_of(history) if note["audit"] == "differs"]


def figures_of(history: History) -> AuditFigures:
    """Return the figures of a study's audits from its notes."""
    audits, runs, refused = _audits_of(history), history.notes(RESUMES), refused_of(history)
    results = [note["audit"] for note in audits]
    return AuditFigures(
        identical=results.count("identical"),
        differing=results.count("differs"),
        not_run=sum(note["not_run"] for note in runs),
        incomparable=results.count("incomparable"),
        resumes=max((note["resumes"] for note in runs), default=0),
        steps=sum(note["steps"] for note in audits),
        refused=len(refused),
        differences=tuple(note["text"] for note in (*audits, *refused) if note["text"]),
    )


def counts_of(history: History) -> AuditCounts:
    """Return the audits of a study's runs so far, as the next run goes on from them."""
    figures, audits = figures_of(history), _audits_of(history)
    return AuditCounts(
        resumes=figures.resumes,
        audits=figures.identical + figures.differing,
        steps=figures.steps,
        seconds=sum(note["seconds"] for note in audits),
    )


def _audits_of(history: History) -> list[Document]:
    """Return the notes of audits: checks leave notes of the same kind."""
    return [note for note in history.notes(AUDITED) if "audit" in note]
