"""Any study becomes a trace: metrics, times, shared steps; and replays as it ran."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from distributed import Client

import dasktune as dt
from dasktune._engine.limits import Limits
from dasktune._study.study import Study
from dasktune.errors import ConfigurationError
from dasktune.sequences import Constant, Exponential, MultiStep, sequence_from_json
from dasktune.simulate import Trace
from dasktune.storage.database import schema
from dasktune.types import Direction

STEPS = 8
RATES = [
    Constant(0.1),
    Constant(0.4),
    MultiStep(0.1, milestones=[3], gamma=2.0),
    MultiStep(0.1, milestones=[3, 6], gamma=2.0),
    Exponential(0.4, gamma=0.9),
]
UNIQUE = 8 + 8 + 5 + 2 + 7


class Slope(dt.Trainer):
    """Goes down a slope."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.height, self.done = 1.0, 0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp.get("lr", getattr(self, "lr", 0.0))

    def train(self) -> None:
        self.height -= self.lr * self.height
        self.done += 1
        if self.config.get("fails_at") == self.done and self.lr == 0.4:
            raise RuntimeError("too steep")

    def evaluate(self) -> dict[str, float]:
        return {"done": float(self.done), "height": self.height}

    def state_dict(self) -> dict[str, Any]:
        return {"height": self.height, "done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.height, self.done = state["height"], state["done"]


Run = Callable[..., Study]


@pytest.fixture
def run(tmp_path: Path, two_threads: Client) -> Iterator[Run]:
    """Return a function that runs a tuner in a study and returns the study."""
    opened: list[Study] = []

    def made(tuner: dt.algos.Tuner | None = None, **options: Any) -> Study:
        limits = options.pop("limits", None)
        study = dt.create_study(
            Slope,
            name=f"slope {len(opened)}",
            metric="height",
            direction="minimize",
            storage=tmp_path / "s",
            **options,
        )
        opened.append(study)
        if tuner is not None:
            study.optimize(tuner, client=two_threads, last_line=False, limits=limits)
        return study

    yield made
    for study in opened:
        study.close()


def grid(space: dt.Space | None = None) -> dt.algos.Grid:
    return dt.algos.Grid(space or dt.Space(lr=RATES), max_steps=STEPS)


def test_trace_has_the_values_of_the_trials(run: Run) -> None:
    study = run(grid())
    trace = study.trace()
    assert (trace.steps, trace.complete) == (STEPS, len(RATES))
    assert trace.metrics == ("height", "done"), "what was optimised is the first"
    assert trace.directions == {"height": Direction.MINIMIZE}
    for row, trial in zip(trace.values, study.trials, strict=True):
        found = [trial.metrics[step] for step in range(1, STEPS + 1)]
        assert row.tolist() == [[one["height"], one["done"]] for one in found]
    rates = [one["lr"] for one in trace.configurations]
    assert rates[:2] == [0.1, 0.4]
    assert [sequence_from_json(one) for one in rates[2:]] == RATES[2:]


def test_trace_of_merged_study_shares_steps_in_simulation(run: Run, tmp_path: Path) -> None:
    study = run(grid())
    trace = study.trace()
    assert trace.shared == ((0, 0), (0, 0), (0, 3), (2, 6), (1, 1))
    path = trace.save(tmp_path / "slope.zarr")
    for workers in (1, 2, 7):
        found = dt.simulate(grid(trace.space()), path, workers=workers)
        summary = study.summary()
        assert found.steps_executed == summary["steps_executed"] == UNIQUE
        assert found.summary()["steps_requested"] == summary["steps_requested"]
        assert found.best_trial is not None
        assert (found.best_trial.number, found.best_trial.value) == (
            study.best_trial.number,
            study.best_value,
        )
        for mine, theirs in zip(found.trials, study.trials, strict=True):
            heights = {step: {"height": one["height"]} for step, one in theirs.metrics.items()}
            assert mine.metrics == heights


def test_trace_of_unmerged_study_shares_no_steps(run: Run) -> None:
    study = run(grid(), merge=False)
    trace = study.trace()
    assert trace.shared == ()
    found = dt.simulate(grid(trace.space()), trace)
    assert found.steps_executed == study.summary()["steps_executed"] == STEPS * len(RATES)


def test_trace_has_the_times_of_the_workers(run: Run) -> None:
    study = run(grid(dt.Space(lr=[0.1, 0.2, 0.3])))
    trace = study.trace()
    assert trace.seconds is not None
    assert (trace.seconds > 0).all()
    overheads = trace.overheads
    assert min(overheads.begin, overheads.build, overheads.save, overheads.report) > 0
    assert overheads.save <= overheads.report, "training goes on before the state is durable"
    spent = sum((one.ended or 0.0) - one.started for one in study.stages())
    starts = sum(one.start_seconds or 0.0 for one in study.stages())
    assert trace.seconds.sum() + starts <= spent, "nothing is counted twice"
    found = dt.simulate(grid(trace.space()), trace, workers=1)
    parts = trace.seconds.sum() + 3 * (overheads.build + overheads.handover + overheads.save)
    late = max(0.0, overheads.report - overheads.save)
    assert found.seconds == pytest.approx(overheads.begin + parts + late)


def test_trace_of_ended_trial_ends_with_it(run: Run) -> None:
    tuner = dt.algos.SHA(
        dt.Space(lr=[0.1, 0.2, 0.3, 0.4]), trials=4, max_steps=STEPS, min_steps=2, eta=2,
        sampler="grid",
    )  # fmt: skip
    study = run(tuner)
    trace = study.trace()
    lengths = [trial.steps for trial in study.trials]
    assert sorted(lengths) == [2, 2, 4, 8]
    assert np.isfinite(trace.values[:, :, 0]).sum(axis=1).tolist() == lengths
    assert trace.complete == 1
    again = dt.algos.SHA(
        trace.space(), trials=4, max_steps=STEPS, min_steps=2, eta=2, sampler="grid"
    )
    found = dt.simulate(again, trace, workers=2)
    assert [trial.steps for trial in found.trials] == lengths
    assert found.steps_executed == study.summary()["steps_executed"]


def test_trace_unmeasured_steps_have_the_mean_time(run: Run) -> None:
    trace = run(grid(dt.Space(lr=[0.1, 0.2])), report_every=3).trace()
    assert trace.measured is not None
    assert trace.measured.any(axis=0).tolist() == [step in (3, 6, 8) for step in range(1, 9)]
    assert trace.seconds is not None
    assert len({*trace.seconds[0, :3]}) == 1
    assert trace.seconds[0, 3] == trace.seconds[0, 5]
    curve = trace.curve("height")
    known = [curve({"configuration": 0}, step) for step in range(1, 9)]
    assert math.isnan(known[1])
    assert known[2:] == pytest.approx([0.9**3] * 3 + [0.9**6] * 2 + [0.9**8])


def test_trace_of_running_study_has_its_values(run: Run) -> None:
    # More than workers are given before the driver looks at the limit again.
    trials = 40
    study = run(
        grid(dt.Space(lr=[(number + 1) / 100 for number in range(trials)])), limits=Limits(steps=9)
    )
    trace = study.trace()
    trained = sum(len(trial.metrics) for trial in study.trials)
    assert np.isfinite(trace.values[:, :, 0]).sum() == trained
    assert 0 < trained < trials * STEPS


def test_trace_of_failed_trial_ends_with_the_failure(run: Run) -> None:
    trace = run(grid(dt.Space(lr=[0.1, 0.4])), config={"fails_at": 5}).trace()
    assert np.isfinite(trace.values[:, :, 0]).sum(axis=1)[0] == STEPS
    assert np.isfinite(trace.values[:, :, 0]).sum(axis=1)[1:].tolist() in ([], [4])


def test_trace_without_values_is_refused(run: Run) -> None:
    study = run()
    with pytest.raises(ConfigurationError, match="no step was measured yet"):
        study.trace()
    study.add_trial({"lr": 0.1}, 0.5, steps=3)
    with pytest.raises(ConfigurationError, match="no step was measured yet"):
        study.trace()


def test_trace_of_old_study_takes_1_second_a_step(run: Run) -> None:
    study = run(grid(dt.Space(lr=[0.1, 0.2])))

    def forget(connection: sa.Connection) -> None:
        connection.execute(sa.update(schema.metrics).values(seconds=None))
        connection.execute(sa.update(schema.checkpoints).values(hold_up=None, latency=None))
        connection.execute(sa.update(schema.stages).values(start_seconds=None, ended=None))
        connection.execute(sa.delete(schema.runs))

    study.database.connections.run(forget)
    trace = study.trace()
    assert trace.seconds is None
    assert set(trace.overheads.to_json().values()) == {0.0}
    assert dt.simulate(grid(trace.space()), trace, workers=2).seconds == STEPS


def test_trace_in_shared_store_has_own_study_only(run: Run) -> None:
    first = run(grid(dt.Space(lr=[0.1, 0.2])))
    second = run(grid(dt.Space(lr=[0.2, 0.3])))
    assert [one["lr"] for one in first.trace().configurations] == [0.1, 0.2]
    trace = second.trace()
    assert [one["lr"] for one in trace.configurations] == [0.2, 0.3]
    assert trace.complete == 2, "also what the other had trained"
    assert second.summary()["steps_executed"] == STEPS
    assert trace.seconds is not None
    assert np.isfinite(trace.seconds).all()


def test_trace_repeats_are_separate_configurations(run: Run) -> None:
    tuner = dt.algos.Repeats(grid(dt.Space(lr=[0.1, 0.2])), seeds=2)
    trace = run(tuner).trace()
    assert len(trace.configurations) == 4
    assert trace.complete == 4
    assert trace.shared == ()


def test_trace_equal_trials_are_one_longest_configuration(run: Run, two_threads: Client) -> None:
    study = run(grid(dt.Space(lr=RATES[:3])))
    study.optimize(
        dt.algos.Grid(dt.Space(lr=RATES[1:]), max_steps=STEPS + 2),
        client=two_threads,
        last_line=False,
    )
    assert len(study.trials) == 7
    trace = study.trace()
    assert len(trace.configurations) == len(RATES)
    assert np.isfinite(trace.values[:, :, 0]).sum(axis=1).tolist() == [8, 10, 10, 10, 10]
    longer = [study.trials[number] for number in (0, 3, 4, 5, 6)]
    for row, trial in zip(trace.values, longer, strict=True):
        assert row[trial.steps - 1, 0] == trial.value
    found = dt.simulate(grid(trace.space()), trace)
    assert found.steps_executed == UNIQUE, "what they share is as before"


def test_trace_begin_is_mean_over_runs_that_trained(run: Run, two_threads: Client) -> None:
    study = run(grid(dt.Space(lr=[0.1])))

    def begins() -> float:
        return study.trace().overheads.begin

    first = begins()
    study.optimize(
        dt.algos.Random(dt.Space(lr=[0.1]), trials=1, max_steps=3),
        client=two_threads,
        last_line=False,
    )
    assert len(list(study.database.runs(1))) == 2
    assert begins() == first > 0, "all was there in the second run: nothing began"
    study.optimize(grid(dt.Space(lr=[0.2])), client=two_threads, last_line=False)
    stages = {one.run: one for one in study.stages()}
    both = [
        stages[one.run].started - one.began for one in study.database.runs(1) if one.run in stages
    ]
    assert begins() == pytest.approx(sum(both) / 2)


def test_trace_of_study_is_saved_and_loaded_unchanged(run: Run, tmp_path: Path) -> None:
    trace = run(grid()).trace()
    again = Trace.load(trace.save(tmp_path / "slope.zarr.zip"))
    for name in ("values", "seconds", "measured"):
        np.testing.assert_array_equal(getattr(again, name), getattr(trace, name))
    assert (again.shared, again.overheads) == (trace.shared, trace.overheads)
    assert again.configurations == trace.configurations
