"""Trials whose trainers end by themselves: figures leave out the steps after that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune._results.summary import savings_line
from dasktune._study.study import Study
from dasktune.sequences import Piecewise

END = 5


class Ending(dt.Trainer):
    """Ends by itself after the step that `END` names, unless lr is small."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.total, self.steps = 0.0, 0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    @property
    def has_ended(self) -> bool:
        return self.steps >= END and self.total >= END

    def train(self) -> None:
        if not self.has_ended:
            self.total, self.steps = self.total + self.lr, self.steps + 1

    def evaluate(self) -> dict[str, float]:
        metrics = {"loss": -self.total}
        return {**metrics, "ended_at": self.steps} if self.has_ended else metrics

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total, "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.total, self.steps = state["total"], state["steps"]


def opened(folder: Path, **options: Any) -> Study:
    return dt.create_study(
        Ending, name="n", metric="loss", storage=folder / "store", load_if_exists=True, **options
    )


@pytest.mark.parametrize("report_every", [1, 4])
def test_steps_after_the_end_are_not_counted(
    report_every: int, tmp_path: Path, two_threads: Client
) -> None:
    rates = [1.0, Piecewise([1.0, 2.0], [8]), Piecewise([1.0, 0.5], [3])]
    study = opened(tmp_path, report_every=report_every)
    space = dt.Space(lr=rates)
    study.optimize(dt.algos.Grid(space, max_steps=10), client=two_threads, check=False)
    study.close()
    study = opened(tmp_path)
    ended = [trial for trial in study.trials if trial.number < 2]
    assert [(each.steps, each.state.name, each.value) for each in ended] == [
        (END, "COMPLETE", -5.0)
    ] * 2
    assert all(max(each.metrics) == END for each in ended)
    assert study.trials[2].steps == 7  # at 3 + 4 * 0.5
    summary = study.summary()
    assert summary["steps_requested"] == 5 + 5 + 7
    assert summary["steps_unique"] == 5 + 4
    assert summary["steps_executed"] == 5 + 4
    assert (summary["steps_repeated"], summary["steps_beyond"]) == (0, 0)
    assert "trained 53% of the steps asked for (9 of 17)" in savings_line(summary)
    assert [*study.trials_dataframe()["steps"]] == [5, 5, 7]
    figures = study.database.figures(study.results.row.id)
    assert (figures.steps_requested, figures.steps_executed) == (17, 9)
    study.optimize(dt.algos.Grid(space, max_steps=12), client=two_threads, check=False)
    assert [each.steps for each in study.trials] == [5, 5, 7] * 2
    assert study.summary()["steps_executed"] == 9
    assert study.trial_state(0) == {"total": 5.0, "steps": 5}
    study.close()
