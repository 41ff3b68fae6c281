"""Resumes that are refused: nothing wrong is reported, and the others go on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune._driver.refused_resumes import AloneRule, alone_rule
from dasktune._engine.trials import lineage_of
from dasktune.sequences import Constant, MultiStep
from dasktune.trainer.lifecycle import run_alone
from dasktune.types import TrialState
from tests.forgetful import Amount, Tally


class Plateau(dt.Trainer):
    """Halves its rate when the loss stays, and forgets in its state what it needs for that."""

    amount: type[float] = Amount
    tally: type[int] = Tally

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x, self.lr = 5.0, hp["lr"]
        self.scale, self.best, self.bad = self.amount(1), self.amount("inf"), self.tally(0)

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        self.x -= float(self.lr * self.scale) * self.x
        loss = self.amount(abs(self.x - 1))
        self.bad = self.tally(0) if loss < self.best else self.bad + 1
        self.best = min(self.best, loss)
        if self.bad == 3:
            self.scale, self.bad = self.scale / 2, self.tally(0)

    def evaluate(self) -> dict[str, float]:
        return {"loss": abs(self.x - 1)}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x = state["x"]


class InOneBranch(Plateau):
    """Forgets a momentum, which one mode alone has."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.mode, self.momentum = hp["mode"], self.amount(0)

    def train(self) -> None:
        step = self.lr * self.x
        if self.mode == "b":
            self.momentum = 0.9 * self.momentum + step
            step = float(self.momentum)
        self.x -= step


class Plain(Plateau):
    """Forgets plain numbers, which are kept beside its state."""

    amount, tally = float, int


class Raises(Plateau):
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise KeyError("bad")


RATES = [MultiStep(0.02, milestones=[at], gamma=0.5) for at in (4, 8, 12)]


def study(trainer: type, path: Path, **options: Any) -> dt.Study:
    return dt.create_study(
        trainer,
        name="refused",
        storage=str(path),
        metric="loss",
        direction="minimize",
        load_if_exists=True,
        **options,
    )


def run(study: dt.Study, client: Client, space: dt.Space) -> None:
    study.optimize(dt.algos.Grid(space, max_steps=16), client=client, check=False, audit=0.0)


def assert_exact(study: dt.Study, trainer: type) -> None:
    for trial in study.trials:
        assert trial.state is TrialState.COMPLETE
        alone = run_alone(trainer, trial.sequences, 16).metrics
        assert {step: dict(each) for step, each in trial.metrics.items()} == alone


def test_a_lineage_that_cannot_resume_goes_on_alone(
    two_threads: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    space = dt.Space(lr=RATES, mode=["a", "b"])
    made = study(InOneBranch, tmp_path)
    with caplog.at_level(logging.WARNING):
        run(made, two_threads, space)
    assert_exact(made, InOneBranch)
    assert "- trainer.momentum: is Amount 0.0 after loading, and was Amount 0." in caplog.text
    assert 'harmless_differences = ("trainer.momentum",)' in caplog.text
    assert "trials with the same values at step 0 are trained alone" in caplog.text
    merged, alone = 16 + 12 + 8, 3 * 16
    assert made.summary()["steps_unique"] == merged + alone, "mode a is merged as before"
    assert made.summary()["audits"]["differences"]


def test_a_second_lineage_ends_merging(
    two_threads: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    space = dt.Space(
        lr=[*RATES, *(MultiStep(0.03, milestones=[at], gamma=0.5) for at in (4, 8, 12))]
    )
    made = study(Plateau, tmp_path)
    with caplog.at_level(logging.WARNING):
        run(made, two_threads, space)
    assert_exact(made, Plateau)
    assert "the study merges nothing any more" in caplog.text
    assert caplog.text.count("- trainer.best: is Amount inf after loading") >= 2


def test_a_lineage_that_forgets_plain_numbers_is_merged(
    two_threads: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = study(Plain, tmp_path)
    run(made, two_threads, dt.Space(lr=RATES))
    assert_exact(made, Plain)
    assert made.summary()["steps_unique"] == 16 + 12 + 8
    assert made.summary()["audits"]["differences"] == []
    assert "cannot go on" not in caplog.text


def test_a_load_that_raises_refuses_the_resume(
    two_threads: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = study(Raises, tmp_path)
    run(made, two_threads, dt.Space(lr=RATES))
    assert_exact(made, Raises)
    assert "Raises.load_state_dict raised KeyError: 'bad'" in caplog.text


def test_a_later_run_trains_the_lineage_alone(
    two_threads: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(study(InOneBranch, tmp_path), two_threads, dt.Space(lr=RATES, mode=["a", "b"]))
    caplog.clear()
    again = study(InOneBranch, tmp_path)
    more = [MultiStep(0.02, milestones=[at], gamma=0.5) for at in (5, 9)]
    run(again, two_threads, dt.Space(lr=more, mode=["b"]))
    assert_exact(again, InOneBranch)
    assert "trains the trials of a lineage alone, from step 0" in caplog.text
    assert "cannot resume after step" not in caplog.text


def test_a_failed_check_that_is_allowed_compares_nothing(
    two_threads: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = study(Plateau, tmp_path)
    tuner = dt.algos.Grid(dt.Space(lr=RATES), max_steps=16)
    made.optimize(tuner, client=two_threads, allow_failed_check=True)
    assert made.summary()["merge_rate"] > 1
    assert "cannot go on" not in caplog.text


def test_time_of_proofs_is_counted(two_threads: Client, tmp_path: Path) -> None:
    class Whole(Plain):
        def state_dict(self) -> dict[str, Any]:
            return dict(vars(self))

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            vars(self).update(state)

    made = study(Whole, tmp_path)
    run(made, two_threads, dt.Space(lr=RATES))
    assert 0 < made.summary()["proof_seconds"] < made.summary()["worker_seconds"]
    assert made.summary()["audits"]["differences"] == []


NOTE = {"lineage": lineage_of({"lr": Constant(0.1)}, 0), "paths": ["trainer.best", "trainer.bad"]}
OTHER = {"lineage": lineage_of({"lr": Constant(0.2)}, 0), "paths": ["trainer.best"]}


@pytest.mark.parametrize(
    ("notes", "harmless", "rule"),
    [
        ([], (), AloneRule()),
        ([NOTE], (), AloneRule(lineages=frozenset({NOTE["lineage"]}))),
        ([NOTE, NOTE], (), AloneRule(lineages=frozenset({NOTE["lineage"]}))),
        ([NOTE], ("trainer.best",), AloneRule(lineages=frozenset({NOTE["lineage"]}))),
        ([NOTE], ("trainer.best", "trainer.bad"), AloneRule()),
        (
            [NOTE, OTHER],
            (),
            AloneRule(is_all=True, lineages=frozenset({NOTE["lineage"], OTHER["lineage"]})),
        ),
    ],
)
def test_alone_rule_follows_from_notes(
    notes: list[dict[str, Any]], harmless: tuple[str, ...], rule: AloneRule
) -> None:
    assert alone_rule(notes, harmless) == rule
