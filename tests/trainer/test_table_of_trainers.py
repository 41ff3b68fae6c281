"""The table of trainers: each kind in a merged study, against each trial alone.

``python -m tests.trainer.test_table_of_trainers`` writes the table into its page.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import pytest
from distributed import Client

import dasktune as dt
from dasktune._study.study import Study
from dasktune.errors import ConfigurationError, TrainerError
from dasktune.sequences import Constant, MultiStep, Sequence
from dasktune.storage.verdicts import Verdicts
from dasktune.trainer.base import problems_of
from dasktune.trainer.check_resume import ResumeReport, check_resume
from dasktune.trainer.check_resume.new_process import run_in_new_process
from dasktune.trainer.check_resume.verdict import verdict
from dasktune.trainer.check_switch import SWITCH
from dasktune.trainer.code import pack, unpack
from dasktune.trainer.given import as_trainer
from dasktune.trainer.lifecycle import run_alone
from dasktune.types import TrialState
from tests.forked import run_forked
from tests.trainer import kinds

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
BEGIN, END = "<!-- trainers -->\n", "<!-- end of trainers -->"

STEPS = 8
RATES: list[Sequence] = [
    Constant(0.1),
    MultiStep(0.1, milestones=[3], gamma=0.5),
    MultiStep(0.1, milestones=[3, 5], gamma=0.5),
    MultiStep(0.1, milestones=[6], gamma=0.5),
]
UNIQUE = 8 + 5 + 3 + 2


class Outcome(Enum):
    """The outcome of a merged study."""

    EXACT = "exact"
    STOPPED = "stopped"
    SHARED = "exact; where workers are threads, it is trained alone"
    TRACE = "exact; the check refuses it"
    REFUSED = "exact: what cannot resume is trained alone"
    SILENT = "**silent** with `check=False`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of trainer and its outcome.

    Parameters
    ----------
    name
        The class in `kinds`.
    outcome
        The outcome.
    sign
        The beginning of the error that stops it, or the difference that the check, or an audit,
        names.
    """

    name: str
    outcome: Outcome
    sign: str = ""

    @property
    def words(self) -> str:
        """The sign in words."""
        match self.outcome:
            case Outcome.EXACT:
                return ""
            case Outcome.SHARED:
                return f"each resume in a thread names `{self.sign}`"
            case Outcome.STOPPED:
                return f"the trial fails: `{self.sign}`"
            case Outcome.REFUSED:
                return f"the check and each resume name `{self.sign}`"
            case Outcome.SILENT | Outcome.TRACE:
                return f"the check names `{self.sign}`"

    @property
    def kind(self) -> type:
        """The trainer."""
        found: type = as_trainer(getattr(kinds, self.name))
        if found.__module__ == kinds.__name__ and hasattr(found, "function"):
            found.requires_process = False  # type: ignore[attr-defined]  # see `kinds.Net`
        return found


def exact(name: str) -> Row:
    return Row(name=name, outcome=Outcome.EXACT)


def stopped(name: str, sign: str) -> Row:
    return Row(name=name, outcome=Outcome.STOPPED, sign=sign)


def silent(name: str, sign: str) -> Row:
    return Row(name=name, outcome=Outcome.SILENT, sign=sign)


def shared(name: str, sign: str) -> Row:
    return Row(name=name, outcome=Outcome.SHARED, sign=sign)


def trace(name: str, sign: str) -> Row:
    return Row(name=name, outcome=Outcome.TRACE, sign=sign)


def refused(name: str, sign: str) -> Row:
    return Row(name=name, outcome=Outcome.REFUSED, sign=sign)


OUTSIDE = "something outside the state"

ROWS = [
    exact("Net"),
    exact("MixedPrecision"),
    exact("AveragedEma"),
    exact("TensorEma"),
    exact("DataEma"),
    exact("NumpyView"),
    exact("SetBesideTensor"),
    exact("Accumulation"),
    exact("AccumulationWithin"),
    exact("Swa"),
    exact("Lbfgs"),
    exact("BatchSchedule"),
    exact("EpochSchedule"),
    exact("NewOptimizer"),
    exact("Unfreezing"),
    refused("Growing", "state['objects']['model']"),
    exact("ThreadLoader"),
    exact("TorchLoader"),
    exact("TorchLoaderWorkers"),
    exact("TorchLoaderResumable"),
    stopped("TorchLoaderPersistent", "trainer.batches._iterator: the position of a"),
    stopped("HeldIterator", "trainer.rows: the position of a range_iterator"),
    exact("HeldGenerators"),
    exact("HeldAgent"),
    exact("AgentCounter"),
    exact("Window"),
    refused("MixedDict", "trainer.parts['steps']"),
    refused("HeldEstimator", "trainer.model.n_features_in_"),
    exact("Descent"),
    exact("SavedGenerators"),
    exact("PartialFit"),
    stopped("EstimatorAsState", "state['model']"),
    silent("ForgottenPython", "Python's global random generator"),
    silent("ForgottenNumpy", "NumPy's global random generator"),
    exact("ForgottenHeld"),
    silent("ForgottenTorch", "torch's global random generator"),
    refused("ForgottenMomentum", "trainer.state['momentum']"),
    exact("ForgottenCounter"),
    refused("ForgottenPosition", "trainer.batches (a generator)"),
    refused("SlowAccumulation", "trainer.sums.given"),
    shared("ModuleGlobal", "global COUNTER['calls']"),
    shared("ClassAttribute", "ClassAttribute.calls[0]"),
    refused("DefaultArgument", "default calls of DefaultArgument.noise[0]"),
    refused("Closure", "variable calls of counting.<locals>.count"),
    silent("Clock", OUTSIDE),
    silent("Unseeded", "trainer.generator"),
    trace("BestSoFar", "trainer.evaluations"),
    exact("tracking"),
    stopped("untracked", "noise, a Generator, has a state that would be lost"),
    exact("counting_in_a_variable"),
    refused("forgetting", "forgetting.<locals>.step.calls"),
]


def merged(kind: type, folder: Path, client: Client) -> Study:
    """Return a study of four trials that share their beginnings, once it has run."""
    study = dt.create_study(kind, name="kinds", storage=folder, metric="loss", load_if_exists=True)
    grid = dt.algos.Grid(dt.Space(lr=RATES), max_steps=STEPS)
    # All resumes are drawn, so the one audit does not depend on which stages were the first.
    study.optimize(grid, client=client, progress=False, audit=1.0)
    return study


def differing(study: Study, kind: type) -> list[int]:
    """Return the complete trials that are not what they are alone, bit for bit."""
    numbers, code = [], pack(kind)
    for trial in study.trials:
        if trial.state is not TrialState.COMPLETE:
            continue
        # A copy of the class with globals of its own, as a new process has.
        alone = run_alone(unpack(code), trial.sequences, STEPS, seed=study.seed)
        if trial.metrics != alone.metrics:
            numbers.append(trial.number)
    return numbers


def errors_of(study: Study) -> list[str]:
    return [str(trial.error) for trial in study.trials if trial.state is TrialState.FAIL]


def test_table_has_every_kind_once() -> None:
    trainers = [
        name
        for name, kind in vars(kinds).items()
        if getattr(kind, "__module__", "") == kinds.__name__
        and (isinstance(kind, type) or "run" in getattr(kind, "__annotations__", ()))
        and not problems_of(kind)
    ]
    assert [row.name for row in ROWS] == trainers
    assert len(trainers) >= 20


def test_page_has_the_table() -> None:
    assert table() in PAGE.read_text()


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_merged_study_has_the_outcome_of_the_table(
    row: Row, tmp_path: Path, one_thread: Client
) -> None:
    study = merged(row.kind, tmp_path, one_thread)
    errors, wrong = errors_of(study), differing(study, row.kind)
    match row.outcome:
        case Outcome.EXACT | Outcome.TRACE:
            assert (errors, wrong) == ([], [])
            assert study.summary()["steps_executed"] == UNIQUE, "nothing was merged"
        case Outcome.STOPPED:
            assert errors
            assert all(row.sign in error for error in errors), errors
            assert not wrong
        case Outcome.REFUSED | Outcome.SHARED:
            assert (errors, wrong) == ([], [])
            texts = study.summary()["audits"]["differences"]
            assert any(row.sign in text for text in texts), texts
        case Outcome.SILENT:
            assert not errors
            assert wrong
    study.close()


def passed(kind: type, folder: Path) -> None:
    """Record that a check has passed a trainer: whatever it does is left to the audits."""
    study = dt.create_study(kind, name="kinds", storage=folder, metric="loss")
    verdicts = Verdicts(study.results.database, study.results.store.files)
    verdicts.record(verdict(study.results.row.spec["fingerprint"], "cpu", ok=True, text="passed"))
    study.close()


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_audit_agrees_with_the_table(
    row: Row, tmp_path: Path, one_thread: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "on")
    passed(row.kind, tmp_path)
    study = merged(row.kind, tmp_path, one_thread)
    audits = study.summary()["audits"]
    if row.outcome is Outcome.EXACT:
        assert (audits["identical"], audits["differing"]) == (1, 0)
        assert study.summary()["steps_executed"] == UNIQUE, "steps of audits are counted apart"
    study.close()


def checked(row: Row) -> ResumeReport:
    """Return the report of the check as it is by default; the change of value is moved."""
    rate = MultiStep(0.1, milestones=[60], gamma=0.5)
    run = partial(run_in_new_process, execute=run_forked)
    return check_resume(row.kind, {"lr": rate}, run=run)


@pytest.mark.process
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_check_agrees_with_the_table(row: Row) -> None:
    match row.outcome:
        case Outcome.EXACT | Outcome.SHARED:
            report = checked(row)
            assert report.ok, str(report)
            assert not [text for text in report.unchecked if "nobody" not in text]
        case Outcome.STOPPED:
            with pytest.raises((TrainerError, ConfigurationError)):
                checked(row)
        case Outcome.REFUSED | Outcome.SILENT | Outcome.TRACE:
            report = checked(row)
            paths = [difference.path for difference in report.differences]
            assert any(path.startswith(row.sign) for path in paths), str(report)


def table() -> str:
    """Return the table as it is in the documentation."""
    return "\n".join(
        [
            "| trainer | outcome | sign |",
            "|---|---|---|",
            *(f"| {row.kind.__doc__} | {row.outcome.value} | {row.words} |" for row in ROWS),
        ]
    )


if __name__ == "__main__":
    BEFORE, REST = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{BEFORE}{BEGIN}{table()}\n{REST[REST.index(END) :]}")
