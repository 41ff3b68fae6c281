"""Runs in a row: what each was made of, what came of it, and where that can be looked at."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dasktune._cluster.local import LOCAL_SETTINGS
from dasktune._study.study import Study
from dasktune.algos.base import Tuner
from tests.chaos import builtin
from tests.chaos.faults import FAULTS, KINDS, timetable
from tests.chaos.lone import Alone
from tests.chaos.run import STEPS, STUDY, Course, Setup, run
from tests.chaos.verify import Findings, verify
from tests.chaos.witness import read

Open = Callable[[Path], tuple[Study, Tuner]]
"""Opens the study of a study file, and makes its tuner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The study of a chaos run: a study file, its settings and a tuner.

    Parameters
    ----------
    name
        For people.
    file
        The study file.
    settings
        ``key=value`` for it.
    alone
        Config of lone runs in the place of the study's; it must not decide the result.
    """

    name: str
    file: Path
    settings: tuple[str, ...] = ()
    alone: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def builtin(cls, tuner: str, *settings: str) -> Case:
        """Return the case of a tuner of our own study, with further ``key=value`` for it."""
        return cls(
            name=tuner,
            file=Path(builtin.__file__),
            settings=(f"kind={tuner}", *settings),
            alone={"pace": 0},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms that all runs share: kills, workers, gaps and time limit.

    Parameters
    ----------
    kills
        How many processes are killed in each.
    workers
        How many there are.
    gap
        Mean time between two faults, in seconds.
    seconds
        A run must have ended by then.
    silence
        After how many seconds without a sign a worker is given up.
    only
        What may happen.
    """

    kills: int = 10
    workers: int = 2
    gap: float = 1.7
    seconds: float = 300.0
    silence: float = 6.0
    only: Collection[str] = tuple(FAULTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one run: its course and its findings.

    Parameters
    ----------
    case, seed
        What was run.
    course
        How it went.
    findings
        What was compared; None if it never came to that.
    problems
        What does not hold; empty if all does.
    folder
        Where it can be looked at; None if nothing is wrong, and it was removed.
    """

    case: Case
    seed: int
    course: Course
    findings: Findings | None
    problems: tuple[str, ...]
    folder: Path | None

    @property
    def kills(self) -> dict[str, int]:
        """How many processes of each kind were killed."""
        killed = Counter(one.fault.target for one in self.course.done if one.fault.is_kill)
        return {kind: killed[kind] for kind in KINDS}

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON document."""
        found = self.findings or Findings()
        return {
            "seed": self.seed,
            "study": self.case.name,
            "problems": list(self.problems),
            "folder": None if self.folder is None else str(self.folder),
            "seconds": self.course.seconds,
            "kills": self.kills,
            "faults": [str(one) for one in self.course.done],
            "ended_by_themselves": list(self.course.ends),
            "states": found.states,
            "metrics": found.metrics,
            "reports": found.reports,
            "steps_trained": found.steps,
            "steps_unique": found.unique,
            "steps_repeated": found.repeated,
            "steps_late": found.late,
            "longest_stage": found.longest,
            "repeated_per_loss": found.per_loss,
        }


def chaos(case: Case, seed: int, terms: Terms, open_study: Open) -> Result:
    """Run a study while its processes are killed; return what came of it.

    The seed decides what happens to which processes and when, and whether Dask has its own
    settings (odd seeds) or those of our local clusters. What they are doing at these
    times it does not decide: another run of the same seed may go otherwise.

    Parameters
    ----------
    case
        The study of a chaos run: a study file, its settings and a tuner.
    seed
        Decides the faults.
    terms
        How many of them, and the rest.
    open_study
        Opens what is left afterwards.
    """
    folder = Path(tempfile.mkdtemp(prefix="dasktune-chaos-"))
    faults = timetable(
        seed, kills=terms.kills, gap=terms.gap, silence=terms.silence, only=terms.only
    )
    setup = Setup(
        file=case.file,
        settings=case.settings,
        folder=folder,
        workers=terms.workers,
        faults=tuple(faults),
        seconds=terms.seconds,
        silence=terms.silence,
        dask={} if seed % 2 else LOCAL_SETTINGS,
    )
    course = run(setup)
    findings = None if course.problem else _look(case, course, folder, open_study)
    problems = (course.problem,) if findings is None else tuple(findings.problems)
    if not problems:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(
        case=case,
        seed=seed,
        course=course,
        findings=findings,
        problems=problems,
        folder=folder if problems else None,
    )


def _look(case: Case, course: Course, folder: Path, open_study: Open) -> Findings:
    study, tuner = open_study(folder / STUDY)
    try:
        alone = Alone(
            study.trainer,
            config={**study.config, **case.alone},
            seed=study.seed,
            report_every=study.report_every,
        )
        return verify(study, tuner, alone, list(read(folder / STEPS)), course.done)
    finally:
        study.close()
