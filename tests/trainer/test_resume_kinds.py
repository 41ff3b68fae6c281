"""Kinds of trainers in merged studies: one of each shape, and what measures them.

``python -m tests.trainer.resume_kinds`` measures all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dasktune.sequences import Constant
from tests.trainer.resume_kinds.command import (
    Cluster,
    chosen,
    forked_cluster,
    read,
    summary,
    write,
)
from tests.trainer.resume_kinds.kind import Expected
from tests.trainer.resume_kinds.measure import (
    Outcome,
    SeenStudy,
    SeenTrial,
    first_named,
    is_right,
    judged,
    measured,
)
from tests.trainer.resume_kinds.table import ALL, KINDS

STEPS = 40
DROPS = ((30,), (60,))

REPRESENTATIVES = (
    # whole and correct
    *("PlainNet", "Pytree", "tracked", "Timed", "LazyProperty", "HandleOfHook"),
    # functions with variables
    *("best_loss", "own_momentum", "generator_in_the_loop"),
    # plain values that a state lacks: forgotten, late, in containers, and in one mode only
    *("ForgottenMomentum", "HeldDeque", "PlateauRule", "Bytes", "MomentumOfMode"),
    # on parts of torch and of modules
    *("DropoutSchedule", "LateModuleCounter"),
    # refused or stopped
    *("Database", "AugmentedByClosure", "LateClass"),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with forked_cluster() as workers:
        yield workers


@pytest.mark.cluster
@pytest.mark.process
@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_merged_study_of_a_kind_ends_as_expected(name: str, cluster: Cluster) -> None:
    row = measured(KINDS[name], cluster.address, steps=STEPS, drops=DROPS)
    cluster.note(row)
    assert row.is_expected, (row.outcome, row.message, row.wrong)
    assert row.is_culprit_right is not False, row.named
    if KINDS[name].expected is Expected.EXACT:
        assert row.resumes >= 2, "nothing was resumed"


def test_table_has_the_kinds_that_were_promised() -> None:
    correct = [kind for kind in ALL if kind.is_correct]
    assert len(correct) >= 40
    assert len(ALL) - len(correct) >= 109
    for kind in ALL:
        assert kind.summary, kind.name
        assert (kind.culprit is None) == (kind.expected is Expected.EXACT), kind.name
    assert set(REPRESENTATIVES) <= set(KINDS)


def seen(
    *metrics: float, state: str = "COMPLETE", error: str = "", is_marked: bool = False
) -> SeenTrial:
    return SeenTrial(
        number=0,
        state=state,
        error=error,
        sequences={"lr": Constant(0.1)},
        metrics={step: {"loss": value} for step, value in enumerate(metrics, 1)},
        is_marked=is_marked,
    )


def study_of(
    trial: SeenTrial, refusal: str = "", warnings: tuple[str, ...] = (), differing: int = 0
) -> SeenStudy:
    return SeenStudy(
        refusal=refusal,
        warnings=warnings,
        trials=(trial,),
        differing=differing,
        resumes=1,
        executed=2,
    )


ALONE = {1: {"loss": 0.5}, 2: {"loss": 0.25}}


def test_a_trial_is_right_if_all_metrics_are_those_alone() -> None:
    assert is_right(seen(0.5, 0.25), ALONE, 2)
    assert not is_right(seen(0.5, 0.25 + 1e-16 * 2), ALONE, 2)
    assert not is_right(seen(0.5), ALONE, 2)
    assert is_right(seen(0.5, state="FAIL"), ALONE, 2)
    assert is_right(seen(0.5, float("nan")), {**ALONE, 2: {"loss": float("nan")}}, 2)
    assert is_right(seen(0.5, state="FAIL"), "TrainerError: it fails alone", 2)


@pytest.mark.parametrize(
    ("study", "wrong", "unmarked", "outcome"),
    [
        (study_of(seen(0.5, 0.25)), (), (), Outcome.EXACT),
        (study_of(seen(state="FAIL"), "trainer.a: differs"), (), (), Outcome.REFUSED),
        (study_of(seen(0.5, state="FAIL", error="trainer.a")), (), (), Outcome.STOPPED),
        (study_of(seen(0.5, 0.25), warnings=("trainer.a",)), (), (), Outcome.STOPPED),
        (
            study_of(seen(0.5, 0.25), warnings=("audit failed",), differing=1),
            (),
            (),
            Outcome.AUDITED,
        ),
        (study_of(seen(0.5, 0.3), warnings=("audit failed",)), (0,), (), Outcome.AUDITED),
        (study_of(seen(0.5, 0.3), warnings=("audit failed",)), (0,), (0,), Outcome.SILENT),
    ],
)
def test_outcome_follows_from_numbers_and_messages(
    study: SeenStudy, wrong: tuple[int, ...], unmarked: tuple[int, ...], outcome: Outcome
) -> None:
    assert judged(study, wrong, unmarked)[0] is outcome


def test_first_named_line_is_that_of_the_error_or_the_list() -> None:
    trace = "Traceback (most recent call last):\n  File\n  a.py\ndasktune.StateError: trainer.a: no"
    assert first_named(trace) == "dasktune.StateError: trainer.a: no"
    assert first_named("failed:\n- trainer.b: differs\n- trainer.c") == "trainer.b: differs"
    assert first_named("noise, a Generator, has a state") == "noise, a Generator, has a state"


def test_kinds_are_chosen_by_name_and_by_module() -> None:
    assert next(kind.name for kind in chosen("Late*,PlainNet")) == "PlainNet"
    assert {kind.theme for kind in chosen("branches")} == {"branches"}


def test_output_file_keeps_rows_of_the_same_steps(tmp_path: Path) -> None:
    row = {"name": "PlainNet", "outcome": "exact", "steps": STEPS}
    checks = {"is_expected": True, "is_culprit_right": None, "is_false_alarm": False}
    write(tmp_path / "rows.json", {"PlainNet": row | checks}, 1.0)
    assert list(read(tmp_path / "rows.json", STEPS)) == ["PlainNet"]
    assert read(tmp_path / "rows.json", STEPS + 1) == {}
    assert read(tmp_path / "other.json", STEPS) == {}
    assert json.loads((tmp_path / "rows.json").read_text())["summary"]["exact"] == 1
    assert summary({})["kinds"] == 0
