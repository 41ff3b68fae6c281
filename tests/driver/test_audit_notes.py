"""The notes of audits: how many there were, and what they found, in figures and words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dasktune._driver.audit_notes import (
    MOST_TRIALS,
    RESUMES,
    AuditFigures,
    counts_of,
    differences_of,
    figures_of,
    named,
)
from dasktune._driver.history import AUDITED, History
from dasktune.graph.audits import AuditCounts
from dasktune.storage.database.database import Database


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with closing(Database(tmp_path / "x.db")) as database:
        yield History(database, 1)


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({}, ""),
        ({"resumes": 5}, ""),
        ({"identical": 1, "resumes": 1}, "audited 1 resume: all identical"),
        ({"identical": 1}, "audited 1 resume: all identical"),
        ({"identical": 1, "resumes": 2}, "audited 1 of 2 resumes: all identical"),
        ({"identical": 2, "resumes": 2}, "audited 2 resumes: all identical"),
        (
            {"identical": 1, "differing": 1, "resumes": 1300},
            "audited 2 of 1,300 resumes: 1 not identical",
        ),
        ({"not_run": 3}, ""),
        (
            {"incomparable": 2},
            "audited no resume, 2 could not be compared: the worker computes other bits than "
            "the one that trained",
        ),
        ({"identical": 1, "not_run": 1}, "audited 1 resume: all identical"),
    ],
)
def test_figures_in_words(figures: dict[str, int], words: str) -> None:
    assert str(AuditFigures(**figures)) == words


@pytest.mark.parametrize(
    ("count", "end"),
    [
        (MOST_TRIALS, f"{MOST_TRIALS - 2}, {MOST_TRIALS - 1}"),
        (MOST_TRIALS + 1, f"{MOST_TRIALS - 1} and 1 more"),
        (MOST_TRIALS + 1234, f"{MOST_TRIALS - 1} and 1,234 more"),
    ],
)
def test_only_the_first_of_many_trials_are_named(count: int, end: str) -> None:
    text = named(range(count))
    assert text.startswith("trials 0, 1, 2, ")
    assert text.endswith(end)


def test_figures_add_up_the_notes_of_all_runs(history: History) -> None:
    assert (figures_of(history), counts_of(history)) == (AuditFigures(), AuditCounts())
    history.note_audited(12)  # a check, which is no audit
    for audit, text in (("identical", ""), ("differs", "w"), ("identical", ""), ("differs", "v")):
        history.note(AUDITED, audit=audit, text=text, steps=3, seconds=0.5)
    history.note(AUDITED, audit="incomparable", text="", steps=0, seconds=0.25)
    history.note(RESUMES, resumes=9, not_run=2)
    history.note(RESUMES, resumes=30, not_run=1)
    figures = figures_of(history)
    assert figures == AuditFigures(
        identical=2,
        differing=2,
        not_run=3,
        incomparable=1,
        resumes=30,
        steps=12,
        differences=("w", "v"),
    )
    assert counts_of(history) == AuditCounts(resumes=30, audits=4, steps=12, seconds=2.25)
    assert [note["text"] for note in differences_of(history)] == ["w", "v"]
    assert history.steps_audited == 24
