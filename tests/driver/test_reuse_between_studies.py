"""Reuse between studies and databases: each state is trained once.

Steps are counted by the trainer, which appends a line to a file for each.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune.sequences import Constant, MultiStep, Piecewise

STEPS = 12
BRANCH = MultiStep(0.1, milestones=[6], gamma=0.5)
LATER = MultiStep(0.1, milestones=[8], gamma=0.5)
FIRST = dt.Space(lr=[Constant(0.1), BRANCH], width=[8, Piecewise([8, 16], boundaries=[3])])
"""Four trials: 12 + 9 + 6 + 6 = 33 of 48 steps are unique."""


class Counted(dt.Trainer):
    """Adds up what it is given; writes down every step that it trains."""

    ignored_config = ("log",)

    def build(self, hp: Mapping[str, Any]) -> None:
        self.path = ""

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.hp = {**getattr(self, "hp", {}), **hp}

    def train(self) -> None:
        self.path += f" {self.hp['lr']:.4f}/{self.hp['width']}"
        with Path(self.config["log"]).open("a") as file:
            file.write(f"{self.path}\n")

    def evaluate(self) -> dict[str, float]:
        return {"length": float(len(self.path))}

    def state_dict(self) -> dict[str, Any]:
        return {"path": self.path, "hp": self.hp}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.path, self.hp = state["path"], dict(state["hp"])


Run = Callable[..., tuple[dt.Study, list[str]]]


@pytest.fixture
def run(tmp_path: Path, two_threads: Client) -> Run:
    """Return a function that trains a grid as a new study: the study, and what it trained."""
    opened: list[dt.Study] = []

    def run(name: str, space: dt.Space, **options: Any) -> tuple[dt.Study, list[str]]:
        log = tmp_path / f"{name}.log"
        log.touch()
        study = dt.create_study(
            Counted,
            name=name,
            storage=tmp_path / "store",
            metric="length",
            direction="minimize",
            config={"log": str(log)},
            **options,
        )
        opened.append(study)
        tuner = dt.algos.Grid(space, max_steps=STEPS)
        study.optimize(tuner, client=two_threads, progress=False, last_line=False)
        return study, log.read_text().splitlines()

    yield run
    for study in opened:
        study.close()


def metrics_of(study: dt.Study) -> list[Mapping[int, Mapping[str, float]]]:
    return [trial.metrics for trial in study.trials]


@pytest.mark.parametrize("database", ["the same", "a new one"])
def test_a_second_study_of_the_same_trains_nothing(run: Run, tmp_path: Path, database: str) -> None:
    first, trained = run("first", FIRST)
    assert len(trained) == len(set(trained)) == first.summary()["steps_executed"] == 33
    options = {} if database == "the same" else {"database": str(tmp_path / "new.db")}
    second, again = run("second", FIRST, **options)
    assert again == []
    found = second.summary()
    assert (found["steps_executed"], found["steps_repeated"]) == (0, 0)
    assert (found["steps_requested"], found["steps_reused"]) == (48, 33)
    assert metrics_of(second) == metrics_of(first)
    assert dt.merge_rate([first]) == first.summary()["merge_rate"] == 48 / 33
    assert dt.merge_rate([first, second]) == 96 / 33


def test_what_was_found_in_the_store_alone_is_written_down(run: Run, tmp_path: Path) -> None:
    first, _ = run("first", FIRST)
    database = str(tmp_path / "new.db")
    run("second", FIRST, database=database)
    shutil.rmtree(tmp_path / "store" / "checkpoints")
    again, trained = run("second", FIRST, database=database, load_if_exists=True)
    assert trained == []
    assert metrics_of(again) == metrics_of(first), "the states are gone, what they gave is not"


@pytest.mark.parametrize("database", ["the same", "a new one"])
def test_a_study_that_overlaps_trains_the_rest(run: Run, tmp_path: Path, database: str) -> None:
    """Its new trials part where those of the first one did: states are there."""
    first, trained = run("first", FIRST)
    wider = dt.Space(
        lr=[Constant(0.1), BRANCH, Piecewise([0.1, 0.3], boundaries=[6])],
        width=[8, Piecewise([8, 16], boundaries=[3])],
    )
    options = {} if database == "the same" else {"database": str(tmp_path / "new.db")}
    second, rest = run("second", wider, **options)
    assert set(rest).isdisjoint(trained)
    assert len(rest) == len(set(rest)) == second.summary()["steps_executed"] == 12
    assert second.summary()["steps_repeated"] == 0
    together = dt.preview([FIRST, wider], max_steps=STEPS)
    assert len({*trained, *rest}) == together.steps_unique
    assert dt.merge_rate([first, second]) == together.merge_rate


@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_branch_between_checkpoints_repeats_few_steps(run: Run, every: int) -> None:
    first, trained = run("first", dt.Space(lr=Constant(0.1), width=8), checkpoint_every=every)
    rates = [MultiStep(0.1, milestones=[at], gamma=0.5) for at in range(1, STEPS)]
    second, rest = run("second", dt.Space(lr=rates, width=8), checkpoint_every=every)
    repeated = len(rest) - len({*rest} - {*trained})
    # Each new branch begins at the last checkpoint below it; what others save is found, too.
    assert repeated <= (every - 1) * len(rates)
    found = second.summary()
    assert found["steps_executed"] == len(rest)
    assert found["steps_repeated"] == repeated
    assert len({*trained, *rest}) == sum(range(1, STEPS)) + STEPS
    assert found["steps_unique"] == sum(range(1, STEPS)) + STEPS - 1
    assert dt.merge_rate([first]) == 1.0


def test_a_control_shares_nothing(run: Run) -> None:
    first, _ = run("first", FIRST)
    control, trained = run("control", FIRST, merge=False)
    assert len(trained) == 48
    assert dt.merge_rate([control]) == 1.0
    assert dt.merge_rate([first, control]) == (48 + 48) / (33 + 48)


def test_other_training_seeds_share_nothing(run: Run) -> None:
    one, _ = run("one", FIRST)
    two, trained = run("two", FIRST, seed=1)
    assert len(trained) == 33
    assert dt.merge_rate([one, two]) == 96 / 66
