"""Ask and tell: a tuner for a loop of one's own."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dasktune as dt
from dasktune._study.study import Study
from dasktune.algos.curves import Curve, Persistence, Prediction, Predictor
from dasktune.errors import ConfigurationError, StorageError
from dasktune.sequences import Constant, MultiStep
from dasktune.types import Decision, Extend, Finish, Register, Report, Step, Stop, TrialState


class Watching(dt.algos.Tuner):
    """Trains two trials to step 8, looks at them at 2 and 5, and stops the second there."""

    max_steps = 8
    state = ("begun", "ends")

    def __init__(self) -> None:
        self.begun, self.ends = False, 0

    def ask(self, capacity: int) -> list[Decision]:
        if self.begun:
            return []
        self.begun = True
        found: list[Decision] = []
        for trial in range(2):
            sequences = {"lr": Constant(0.1 + trial)}
            found.append(Register(trial=trial, sequences=sequences, max_steps=8))
            found.append(Extend(trial=trial, until=8, reports=(2, 5)))
        return found

    def tell(self, report: Report) -> list[Decision]:
        stopped = report.trial == 1 and report.step == 5
        self.ends += stopped or report.step == 8
        found: list[Decision] = [Stop(trial=1)] if stopped else []
        return [*found, Finish()] if self.ends == 2 else found

    def tell_failure(self, trial: int) -> list[Decision]:
        raise NotImplementedError

    def identity(self) -> dict[str, object]:
        return {"tuner": "Watching"}


SPACE = dt.Space(lr=dt.Float(0.1, 1.0))


def make(folder: Path, **options: Any) -> Study:
    named = {"name": "own", "metric": "loss", "load_if_exists": True, **options}
    return dt.create_study(None, storage=folder, **named)


def random(trials: int = 4, **more: Any) -> dt.algos.Random:
    return dt.algos.Random(SPACE, trials=trials, max_steps=3, **more)


def test_ask_tell_runs_a_tuner_to_its_end(tmp_path: Path) -> None:
    study = make(tmp_path)
    while asked := study.ask(random()):
        assert (asked.start, asked.until) == (0, 3)
        assert asked.hp(2) == dict(asked.params)
        study.tell(asked, asked.hp(0)["lr"])  # type: ignore[arg-type]
    assert [one.state for one in study.trials] == [TrialState.COMPLETE] * 4
    assert study.best_value == min(one.params["lr"] for one in study.trials)  # type: ignore[type-var]
    assert study.trials[0].metrics == {3: {"loss": study.trials[0].value}}
    assert study.replay(random()).identical


def test_ask_concurrent_loops_get_different_trials(tmp_path: Path) -> None:
    study = make(tmp_path)
    handed = [study.ask(random()) for _ in range(4)]
    assert [one.number for one in handed if one is not None] == [0, 1, 2, 3]
    assert study.ask() is None, "all are under way"
    for one in reversed(handed):
        assert one is not None
        study.tell(one.number, {"loss": 0.5, "other": 2.0})
    assert study.ask() is None
    assert study.trials[3].metrics[3] == {"loss": 0.5, "other": 2.0}


def test_ask_after_restart_returns_untold_trials(tmp_path: Path) -> None:
    study = make(tmp_path)
    first, second = study.ask(random()), study.ask()
    assert first is not None
    assert second is not None
    study.tell(first, 0.25)
    study.close()
    again = make(tmp_path)
    asked = again.ask(random())
    assert asked == second
    assert again.trials[0].value == 0.25


def test_ask_stops_where_the_tuner_wants_a_report(tmp_path: Path) -> None:
    study, said = make(tmp_path), []
    while asked := study.ask(Watching()):
        said.append((asked.number, asked.start, asked.until))
        study.tell(asked, 1.0)
    assert sorted(said) == [(0, 0, 2), (0, 2, 5), (0, 5, 8), (1, 0, 2), (1, 2, 5)]
    assert [one.state.value for one in study.trials] == ["COMPLETE", "PRUNED"]


def test_tell_failure_fails_the_trial(tmp_path: Path) -> None:
    study = make(tmp_path)
    asked = study.ask(random(2))
    assert asked is not None
    study.tell(asked, state=TrialState.FAIL)
    other = study.ask()
    assert other is not None
    study.tell(other, math.nan)
    assert study.ask() is None
    assert [one.state.value for one in study.trials] == ["FAIL", "COMPLETE"]


def test_tell_several_objectives_by_order_or_name(tmp_path: Path) -> None:
    study = make(tmp_path, metric=["error", "size"], direction=["minimize", "maximize"])
    told = [[0.5, 1.0], {"size": 2.0, "error": 0.7}, [0.6, 0.5], [0.5, 1.0]]
    for values in told:
        asked = study.ask(random())
        assert asked is not None
        study.tell(asked, values)
    assert [one.values for one in study.trials] == [[0.5, 1.0], [0.7, 2.0], [0.6, 0.5], [0.5, 1.0]]
    assert [one.number for one in study.best_trials] == [0, 1, 3]
    with pytest.raises(ConfigurationError, match="best_trial needs one objective"):
        _ = study.best_trial


def test_tell_invalid_values_is_refused_and_loses_nothing(tmp_path: Path) -> None:
    study = make(tmp_path)
    with pytest.raises(ConfigurationError, match="must be given a tuner first"):
        study.ask()
    asked = study.ask(random())
    assert asked is not None
    for values in (None, [1.0, 2.0], {"los": 1.0}, {"loss": "x"}, {"loss": None}, "good", "1"):
        with pytest.raises(ConfigurationError, match="values must be those of loss"):
            study.tell(asked, values)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="got 3; this one has asked for: 0"):
        study.tell(3, 0.5)
    with pytest.raises(ConfigurationError, match="state must be COMPLETE or FAIL"):
        study.tell(asked, 0.5, state=TrialState.PRUNED)
    study.tell(asked, 0.5)
    with pytest.raises(ConfigurationError, match="asked for: none"):
        study.tell(asked, 0.5)


def test_optimize_without_trainer_is_refused(tmp_path: Path) -> None:
    study = make(tmp_path)
    with pytest.raises(ConfigurationError, match="must have a trainer for this, got None"):
        study.optimize(random())
    with pytest.raises(ConfigurationError, match="must have a trainer"):
        study.evaluate({"lr": 0.1}, steps=2)


def test_ask_finished_tuner_continues_with_more_trials(tmp_path: Path) -> None:
    study = make(tmp_path)
    while asked := study.ask(random(2)):
        study.tell(asked, 1.0)
    while asked := study.ask(random(5)):
        study.tell(asked, 2.0)
    assert [one.value for one in study.trials] == [1.0, 1.0, 2.0, 2.0, 2.0]
    assert study.replay(random(5)).identical
    assert study.replay(random(2)).identical


def test_queued_points_come_first_and_once(tmp_path: Path) -> None:
    study = make(tmp_path)
    study.enqueue_trial({"lr": 0.75})
    study.enqueue_trial({"lr": 0.25})
    tuner = random(3)
    asked = [study.ask(tuner) for _ in range(3)]
    assert [one.params["lr"] for one in asked if one is not None][:2] == [0.75, 0.25]
    assert study.queued == []
    for trial in asked:
        assert trial is not None
        study.tell(trial, 1.0)
    other = study.ask(random(1, seed=1))
    assert other is not None
    assert other.params["lr"] not in (0.75, 0.25)


def test_queued_point_outside_space_is_refused_and_clearable(tmp_path: Path) -> None:
    study = make(tmp_path)
    study.enqueue_trial({"rate": 0.75})
    with pytest.raises(ConfigurationError, match="unknown coordinate 'rate'; known: lr"):
        study.ask(random())
    assert study.trials == []
    study.clear_queue()
    assert study.ask(random()) is not None


def test_tell_ended_trial_is_ignored(tmp_path: Path) -> None:
    study = make(tmp_path)
    tuner = dt.algos.PBT(SPACE, population=5, max_steps=4, every=1)
    for _ in range(5):
        assert study.ask(tuner) is not None
    for number in range(4):
        study.tell(number, float(number))
    again = {one.number: one for _ in range(4) if (one := study.ask()) is not None}
    assert again[3].start == 1
    study.tell(4, -1.0)  # the best of five: now trial 3 is the worst, and is replaced
    assert study.trials[3].state is TrialState.PRUNED
    study.tell(again[3], -5.0)
    assert (study.trials[3].steps, study.trials[3].value) == (1, 3.0)
    assert study.best_value == -1.0
    assert study.replay(tuner).identical


def test_add_trial_while_loop_is_open(tmp_path: Path) -> None:
    study = make(tmp_path)
    asked = study.ask(random(2))
    assert asked is not None
    added = study.add_trial({"lr": 0.5}, 0.75)
    study.tell(asked, 0.25)
    other = study.ask()
    assert other is not None
    study.tell(other, 0.5)
    assert [one.value for one in study.trials] == [0.25, 0.5, 0.75]
    assert added == 2
    study.close()
    assert [one.value for one in make(tmp_path).trials] == [0.25, 0.5, 0.75]


def test_ask_known_tuner_in_same_process_continues(tmp_path: Path) -> None:
    study = make(tmp_path)
    family = dt.Family(MultiStep, init=dt.Float(0.1, 1.0), milestones=[3], gamma=0.1)
    for trials in (2, 2, 4):
        tuner = dt.algos.Random(dt.Space(lr=family), trials=trials, max_steps=4)
        while asked := study.ask(tuner):
            study.tell(asked, 1.0)
        assert len(study.trials) == trials
        assert study.replay(tuner).identical


@pytest.mark.parametrize(
    "value", [np.float32(0.5), np.int64(1), np.array(0.5), torch.tensor(0.5), [np.float64(0.5)]]
)
def test_tell_accepts_numbers_of_numpy_and_torch(tmp_path: Path, value: Any) -> None:
    study = make(tmp_path)
    asked = study.ask(random(1))
    assert asked is not None
    study.tell(asked, value)
    assert study.best_value in (0.5, 1.0)


SECOND = """
import sys
import dasktune as dt
study = dt.create_study(None, storage=sys.argv[1], name="own", metric="loss", load_if_exists=True)
tuner = dt.algos.Random(dt.Space(lr=dt.Float(0.1, 1.0)), trials=4, max_steps=4, seed=1)
try:
    asked = study.ask(tuner)
except dt.errors.StorageError as error:
    sys.exit(str(error))
study.tell(asked, 2.0)
"""


@pytest.mark.process
def test_ask_by_a_second_process_is_refused(tmp_path: Path) -> None:
    def ask_elsewhere() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", SECOND, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    study = make(tmp_path)
    tuner = dt.algos.Random(SPACE, trials=4, max_steps=4, seed=1)
    asked = study.ask(tuner)
    assert asked is not None
    second = ask_elsewhere()
    assert "must be asked through one study object at a time" in second.stderr
    study.close()
    assert ask_elsewhere().returncode == 0


def test_ask_by_a_second_study_object_is_refused(tmp_path: Path) -> None:
    study, other = make(tmp_path), make(tmp_path)
    asked = study.ask(random())
    assert asked is not None
    with pytest.raises(StorageError, match=r"one study object at a time.*study\.close\(\)"):
        other.ask(random())
    study.tell(asked, 0.5)
    study.close()
    again = other.ask(random())
    assert again is not None
    assert again.number == 1, "the trial that was told is not asked again"
    other.close()
    assert study.ask(random()) == again


def test_ask_after_the_first_study_was_dropped(tmp_path: Path) -> None:
    study = make(tmp_path)
    asked = study.ask(random())
    study = make(tmp_path)  # as a cell of a notebook does that is run again
    assert study.ask(random()) == asked


def test_ask_another_tuner_is_refused_while_a_trial_is_untold(tmp_path: Path) -> None:
    study = make(tmp_path)
    first, other = random(), random(seed=5)
    asked = study.ask(first)
    assert asked is not None
    with pytest.raises(ConfigurationError, match=r"got untold trials: 0; study.tell"):
        study.ask(other)
    study.tell(asked, 1.0)
    assert study.trials[0].value == 1.0, "nothing is lost"
    assert study.ask(other) is not None
    study.tell(4, state=TrialState.FAIL)
    assert study.ask(first) is not None


def test_ask_tuner_with_fewer_trials_is_the_same_tuner(tmp_path: Path) -> None:
    study = make(tmp_path)
    for trials in (4, 8, 6, 2, 8):
        while asked := study.ask(random(trials)):
            study.tell(asked, 1.0)
    assert len(study.trials) == 8


def test_best_repeats_first_has_the_best_mean(tmp_path: Path) -> None:
    study = make(tmp_path, seed=7)
    tuner = dt.algos.Repeats(random(2), seeds=2)
    told = {(0, 7): 1.0, (0, 8): 2.0, (1, 7): 0.5, (1, 8): 4.5}
    numbers: dict[object, int] = {}
    while asked := study.ask(tuner):
        configuration = numbers.setdefault(asked.params["lr"], len(numbers))
        study.tell(asked, told[configuration, asked.seed])
    assert study.best_value == 0.5, "the luckiest seed"
    best, other = study.best_repeats
    assert (best.mean, other.mean) == (1.5, 2.5)
    assert (best.values, best.trials) == ((1.0, 2.0), (0, 1))
    assert best.deviation == pytest.approx(0.5**0.5)
    assert list(study.trials_dataframe()["seed"]) == [0, 1, 0, 1]


class Cloudy(Persistence):
    def predict(self, curve: Curve, steps: tuple[Step, ...], *, seed: int = 0) -> Prediction:
        raise ValueError("cloudy")


def early_term(predictor: Predictor) -> dt.algos.EarlyTerm:
    rates = dt.Space(lr=[0.1, 1.0])
    return dt.algos.EarlyTerm(
        rates, trials=2, max_steps=8, every=2, sampler="grid", predictor=predictor
    )


@pytest.mark.parametrize(
    ("predictor", "state"), [(Persistence(), "PRUNED"), (Cloudy(), "COMPLETE")]
)
def test_ask_tell_makes_predictions_in_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, predictor: Predictor, state: str
) -> None:
    study = make(tmp_path)
    tuner = early_term(predictor)
    while asked := study.ask(tuner):
        study.tell(asked, 100 * asked.hp(0)["lr"] + 1 / asked.until)  # type: ignore[operator]
    assert [trial.state.value for trial in study.trials] == ["COMPLETE", state]
    assert ("trial 1 cannot be predicted: ValueError: cloudy" in caplog.text) == (
        state == "COMPLETE"
    )
    assert study.replay(tuner).identical


def test_timed_tuner_gets_seconds_and_capacity_from_ask_tell(tmp_path: Path) -> None:
    study = make(tmp_path)
    tuner = dt.algos.POP(SPACE, target=-1.0, within="1h", trials=3, max_steps=4, every=1)
    first, second = study.ask(tuner), study.ask()
    assert first is not None
    assert second is not None
    study.tell(first, 0.5)
    study.tell(second, 0.4)
    third = study.ask()
    assert third is not None
    study.tell(third, 0.3)
    times = [one["now"] for one in study.log(tuner) if one["kind"] == "tell"]
    assert [one["workers"] for one in times] == [2, 2, 2]
    assert all(one["step_seconds"] > 0 for one in times)
    assert times[2]["step_seconds"] < 60
