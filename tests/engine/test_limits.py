"""Limits and callbacks: runs that end early, and user code that hears of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune._engine.alike import AlikeFailures, user_line
from dasktune._engine.limits import Used
from dasktune._engine.timeouts import Waits
from dasktune.errors import ConfigurationError
from dasktune.types import Objective, Report
from tests.holding import Gate, pass_gate


class Descend(dt.Trainer):
    """Goes down by lr a step."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.height = 1.0

    def setup(self, hp: Mapping[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        self.height *= 1 - self.lr

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.height}

    def state_dict(self) -> dict[str, Any]:
        return {"height": self.height}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.height = state["height"]


SPACE = dt.Space(lr=[number / 100 for number in range(1, 21)])
"""More trials than workers are given before the driver looks again whether it is to go on."""

TRIALS = 20
STEPS = 10
ALL = TRIALS * STEPS
ENDLESS = 10**9
"""More steps than are ever trained."""


@pytest.fixture(scope="module")
def client(two_threads: Client) -> Client:
    return two_threads


def make(folder: Path, **options: Any) -> dt.Study:
    named = {"name": "descend", "metric": "loss", "storage": folder, **options}
    return dt.create_study(Descend, **named)


GRID = dt.algos.Grid(SPACE, max_steps=STEPS)


@pytest.mark.parametrize("limits", [{"steps": 5}, {"worker_seconds": 1e-6}, {"seconds": 1e-6}])
def test_a_run_ends_at_its_limit_and_goes_on_with_a_larger_one(
    tmp_path: Path, client: Client, limits: dict[str, float], capfd: pytest.CaptureFixture[str]
) -> None:
    study = make(tmp_path)
    study.optimize(GRID, client=client, limits=dt.Limits(**limits))  # type: ignore[arg-type]
    assert "descend: ended by its limits, " in capfd.readouterr().err
    first = study.summary()["steps_executed"]
    assert first < ALL
    study.optimize(GRID, client=client, limits=dt.Limits(**limits))  # type: ignore[arg-type]
    assert study.summary()["steps_executed"] == first, "what was used before counts"
    study.optimize(GRID, client=client)
    summary = study.summary()
    assert (summary["steps_executed"], summary["steps_repeated"]) == (ALL, 0)
    assert {trial.state.value for trial in study.trials} == {"COMPLETE"}


def test_a_target_ends_the_run_once_any_step_reaches_it(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path, report_every=100)
    far = dt.algos.Grid(SPACE, max_steps=ENDLESS)
    study.optimize(far, client=client, limits=dt.Limits(target=0.95))
    assert not any(trial.state.is_finished for trial in study.trials)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "Limits: steps must be a number > 0, got 0"),
        ({"seconds": "1"}, "Limits: seconds must be a number > 0, got '1'"),
        ({"target": float("nan")}, "Limits: target must be a finite number, got nan"),
    ],
)
def test_a_wrong_limit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        dt.Limits(**options)


class Noting(dt.Callback):
    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def on_report(self, study: dt.Study, trial: dt.Trial, report: Report) -> None:
        assert report.step in trial.metrics
        self.calls.append(("report", trial.number))

    def on_trial_end(self, study: dt.Study, trial: dt.Trial) -> None:
        assert trial.state.is_finished
        self.calls.append(("end", trial.number))

    def on_study_end(self, study: dt.Study) -> None:
        self.calls.append(("study", len(study.trials)))


def test_callbacks_hear_of_reports_ends_and_the_end(tmp_path: Path, client: Client) -> None:
    study, noting = make(tmp_path), Noting()
    study.optimize(GRID, client=client, callbacks=[noting])
    assert sorted(noting.calls[:-1]) == sorted(
        (kind, number) for kind in ("report", "end") for number in range(TRIALS)
    )
    assert noting.calls[-1] == ("study", TRIALS)
    for number in range(TRIALS):
        assert noting.calls.index(("report", number)) < noting.calls.index(("end", number))
    study.optimize(GRID, client=client, callbacks=[noting])
    assert len(noting.calls) == 2 * TRIALS + 1, "nothing ran"


class Gated(Descend):
    """Begins the second half of the trials only when a gate is open."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        if hp["lr"] > 0.1:
            pass_gate(self.config["gate"])


def test_a_callback_may_stop_the_study(tmp_path: Path, client: Client) -> None:
    gate = Gate(tmp_path / "gate")

    class Enough(dt.Callback):
        def on_trial_end(self, study: dt.Study, trial: dt.Trial) -> None:
            assert isinstance(study, dt.Study)
            study.stop()
            gate.open()

    named = {"name": "gated", "metric": "loss", "storage": tmp_path}
    study = dt.create_study(Gated, config={"gate": str(gate.path)}, **named)  # type: ignore[arg-type]
    with gate:
        study.optimize(GRID, client=client, callbacks=[Enough()])
    assert not all(trial.state.is_finished for trial in study.trials)
    study.optimize(GRID, client=client)
    assert {trial.state.value for trial in study.trials} == {"COMPLETE"}
    assert study.summary()["steps_repeated"] == 0


def test_what_a_callback_raises_ends_the_run_and_loses_nothing(
    tmp_path: Path, client: Client
) -> None:
    class Broken(dt.Callback):
        def on_report(self, study: dt.Study, trial: dt.Trial, report: Report) -> None:
            raise KeyError("mine")

    study = make(tmp_path)
    with pytest.raises(KeyError, match="mine"):
        study.optimize(GRID, client=client, callbacks=[Broken()])
    study.optimize(GRID, client=client)
    assert {trial.state.value for trial in study.trials} == {"COMPLETE"}
    summary = study.summary()
    assert (summary["steps_executed"], summary["steps_repeated"]) == (ALL, 0)


def test_what_is_no_callback_is_refused(tmp_path: Path, client: Client) -> None:
    with pytest.raises(ConfigurationError, match=r"a callback must be a dasktune\.Callback"):
        make(tmp_path).optimize(GRID, client=client, callbacks=[print])  # type: ignore[list-item]


def test_a_target_that_was_reached_on_the_way_stays_reached(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path)
    for _ in range(2):
        study.optimize(GRID, client=client, limits=dt.Limits(target=0.95))
        executed = study.summary()["steps_executed"]
    study.close()
    again = make(tmp_path, load_if_exists=True)
    again.optimize(GRID, client=client, limits=dt.Limits(target=0.95))
    assert again.summary()["steps_executed"] == executed


def test_what_a_killed_run_has_used_is_not_forgotten(tmp_path: Path, client: Client) -> None:
    study = make(tmp_path)
    noted: list[int] = []

    class Watch(dt.Callback):
        def on_report(self, study: dt.Study, trial: dt.Trial, report: Report) -> None:
            noted.append(len(other.user_attrs) + int(other.summary()["wall_seconds"] > 0))

    other = make(tmp_path, load_if_exists=True)  # as another process sees it meanwhile
    timeouts = dt.Timeouts(waits=Waits(save_seconds=0.0))
    study.optimize(GRID, client=client, callbacks=[Watch()], timeouts=timeouts)
    assert noted[-1] == 1
    runs = [note for note in study.database.notes(1) if note.payload["kind"] == "run"]
    assert len({note.payload["run"] for note in runs}) == 1
    assert len(runs) > 2
    assert study.summary()["wall_seconds"] == runs[-1].payload["wall_seconds"]


def test_callbacks_hear_of_the_end_also_after_an_error(tmp_path: Path, client: Client) -> None:
    class Broken(Noting):
        def on_report(self, study: dt.Study, trial: dt.Trial, report: Report) -> None:
            raise KeyError("mine")

    noting = Broken()
    with pytest.raises(KeyError, match="mine"):
        make(tmp_path).optimize(GRID, client=client, callbacks=[noting])
    assert noting.calls == [("study", TRIALS)]


def test_what_fails_counts_with_its_time(tmp_path: Path, client: Client) -> None:
    class Failing(Descend):
        def train(self) -> None:
            raise ValueError("never")

    study = dt.create_study(Failing, name="failing", storage=tmp_path, metric="loss")
    study.optimize(dt.algos.Grid(dt.Space(lr=[0.1]), max_steps=3), client=client)
    (note,) = [note for note in study.database.notes(1) if note.payload["kind"] == "run"]
    assert note.payload["worker_seconds"] > 0


@pytest.mark.parametrize(
    ("limits", "used"),
    [
        ({"steps": 100}, {"steps": 100}),
        ({"seconds": 9.0}, {"seconds": 9.0}),
        ({"worker_seconds": 9.0}, {"worker_seconds": 9.0}),
        ({"target": 0.5}, {"best_loss": 0.5}),
    ],
)
def test_limit_is_reached_by_its_amount_and_no_less(
    limits: dict[str, Any], used: dict[str, Any]
) -> None:
    objective = Objective.single("loss", "minimize")
    asked = dt.Limits(**limits)
    (name, amount), *_ = used.items()
    less = amount + 0.25 if name == "best_loss" else amount - 1
    assert asked.reached(Used(**{name: less}), objective) is None
    assert asked.reached(Used(**used), objective)


class Misspelt(Descend):
    def build(self, hp: Mapping[str, Any]) -> None:
        raise KeyError("rate")


class FailingFromTheThird(Descend):
    def train(self) -> None:
        if self.lr > 0.02:
            raise KeyError(self.lr)
        super().train()


def failed(study: dt.Study) -> int:
    return sum(trial.state is dt.TrialState.FAIL for trial in study.trials)


def test_trials_that_all_fail_alike_end_the_run(tmp_path: Path, client: Client) -> None:
    study = dt.create_study(Misspelt, name="bad", metric="loss", storage=tmp_path)
    study.optimize(dt.algos.Grid(SPACE, max_steps=1), client=client, progress=False)
    assert study.limit is not None
    assert study.limit.startswith("all that ended, 1")
    assert "failed alike: KeyError: 'rate' (test_limits.py:" in study.limit
    assert 'raise KeyError("rate")' in study.limit
    assert 10 <= failed(study) < TRIALS


def test_a_run_may_go_on_although_all_fail_alike(tmp_path: Path, client: Client) -> None:
    study = dt.create_study(Misspelt, name="bad", metric="loss", storage=tmp_path)
    limits = dt.Limits(alike_failures=None)
    study.optimize(dt.algos.Grid(SPACE, max_steps=1), client=client, limits=limits, progress=False)
    assert study.limit is None
    assert failed(study) == TRIALS


def test_failures_after_a_report_do_not_end_the_run(tmp_path: Path, client: Client) -> None:
    study = dt.create_study(FailingFromTheThird, name="bad", metric="loss", storage=tmp_path)
    study.optimize(dt.algos.Grid(SPACE, max_steps=1), client=client, progress=False)
    assert study.limit is None
    assert failed(study) == TRIALS - 2


def test_failures_of_two_kinds_do_not_end_the_run() -> None:
    failures = AlikeFailures()
    for message in ("KeyError: 'a'", "KeyError: 'b'", "ValueError: a"):
        failures.add(message, "")
    assert failures.count == 0
    failures.add("KeyError: 'a'", "")
    assert failures.count == 0


def test_the_users_line_is_found_below_the_lines_of_packages() -> None:
    traceback = "\n".join(
        [
            '  File "/venv/lib/python3.11/site-packages/dasktune/trainer/base.py", line 9, in a',
            "    self.trainer.train()",
            '  File "/home/me/tune.py", line 31, in train',
            "    self.net(x)",
            '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/module.py", line 2, in call',
            "    return forward()",
            "RuntimeError: shapes",
        ]
    )
    assert user_line(traceback) == "tune.py:31: self.net(x)"
