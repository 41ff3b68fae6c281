"""Bad input of users in Python: each is refused with what must hold, what came, and the remedy.

What is beyond one process is tested elsewhere: scripts without a main guard in
`test_from_optuna.py`, other working directories in `tests/cli/test_relative_storage.py`, the
command in `tests/cli/test_usage.py`, interrupts in `tests/driver/test_interrupt.py`, and installs
without torch in `tests/trainer/test_without_torch.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from distributed import Client
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

import dasktune as dt
from dasktune._study.study import Study
from dasktune.algos.base import Tuner
from dasktune.errors import ConfigurationError, DasktuneError, TrainerError
from dasktune.sequences import Exponential, MultiStep, Piecewise
from dasktune.trainer.check_switch import SWITCH
from tests.toy_trainers import Adding

SPACE = dt.Space(lr=[0.1, 0.2])
TUNERS: list[Any] = [
    kind
    for name in dt.algos.__all__
    if isinstance(kind := getattr(dt.algos, name), type)
    and issubclass(kind, Tuner)
    and kind is not Tuner
]


class Other(Adding):
    def train(self) -> None:
        self.total -= self.lr


class Locked(Adding):
    lock = threading.Lock()


class Partial(dt.Trainer):
    def build(self, hp: Mapping[str, Any]) -> None:
        pass


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(DasktuneError) as caught:
        call()
    assert "Traceback" not in str(caught.value)
    return str(caught.value)


def create(trainer: Any, folder: Path, **options: Any) -> Study:
    given = {"name": "n", "metric": "loss", "storage": folder, **options}
    return dt.create_study(trainer, **given)


@pytest.fixture
def study(tmp_path: Path) -> Any:
    made = create(Adding, tmp_path)
    yield made
    made.close()


def by_text(value: object) -> str:
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("0.1", ["lr: a number must not be text, got '0.1'; write 0.1, or", "Choice(['0.1'])"]),
        ("20261126", ["got '20261126'; write 20261126, or"]),
        (["1e-3", 0.2], ["got '1e-3'; write 1e-3", "dasktune.Choice(['1e-3', 0.2]) if text"]),
        ((0.1, 1.0), ["got (0.1, 1.0)", "dasktune.Float(0.1, 1.0) or [0.1, 1.0]"]),
        ({"min": 0.1, "max": 1}, ["choices must be a list, got {'min'", "dasktune.Float(low, "]),
        ({"values": [0.1]}, ["choices must be a list, got {'values': [0.1]}"]),
        (dt.Float, ["got <class 'dasktune.space.domains.Float'>", "a range is dasktune.Float(low"]),
        (FloatDistribution, ["got <class 'optuna", "a range is dasktune.Float(low, high)"]),
        (optuna.samplers.RandomSampler(), ["a value must be an int", "RandomSampler"]),
    ],
    ids=["text", "digits", "list", "tuple", "range", "values", "class", "optuna", "sampler"],
)
def test_space_refuses_bad_values(value: object, parts: list[str]) -> None:
    text = refusal(lambda: dt.Space(lr=value))
    assert all(part in text for part in parts), text


def test_space_takes_text_of_a_choice_and_of_words() -> None:
    assert dt.Space(depth=dt.Choice(["18", "50"])).size == 2
    assert dt.Space(optimizer=["adam", "nan", "sgd"], depth="deep").size == 3


def test_space_takes_distributions_of_optuna_at_any_depth() -> None:
    rate = FloatDistribution(1e-3, 1.0, log=True)
    family = dt.Family(Exponential, init=rate, gamma=0.9)
    assert dt.Space(lr=rate) == dt.Space(lr=dt.Float(1e-3, 1.0, log=True))
    assert dt.Space(lr=[rate, 0.5]) == dt.Space(lr=[dt.Float(1e-3, 1.0, log=True), 0.5])
    assert family == dt.Family(Exponential, init=dt.Float(1e-3, 1.0, log=True), gamma=0.9)
    assert dt.Space(n=IntDistribution(1, 3)) == dt.Space(n=dt.Int(1, 3))
    assert dt.Space(n=CategoricalDistribution(["1", "2"])) == dt.Space(n=dt.Choice(["1", "2"]))


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: dt.Float(1, 0), "Float: low must be <= high, got 1.0 and 0.0"),
        (lambda: dt.Float(0, 1, log=True), "Float: low must be > 0 with log, got 0.0"),
        (lambda: dt.Float("0.1", 1), "Float: low must be a finite number, got '0.1'"),  # type: ignore[arg-type]
        (lambda: Piecewise([1, 2, 3], [5]), "values must be one more than boundaries, got 3"),
        (lambda: MultiStep(0.1, [5, 3], 0.1), "milestones must be strictly increasing, got [5, 3]"),
        (lambda: Exponential(FloatDistribution(0, 1), 0.9), "init must be a finite number, got "),  # type: ignore[arg-type]
        (lambda: grid(dt.Space(lr=dt.Float(0, 1))), "lr: a grid needs a finite number of points"),
        (lambda: grid({"lr": [0.1]}), "got {'lr': [0.1]}; write dasktune.Space({'lr': [0.1]})"),
        (lambda: preview({"lr": [0.1]}), "write dasktune.Space({'lr': [0.1]})"),
        (lambda: preview(3), "space must be a Space, or several, got 3; write dasktune.Space("),
        (lambda: asha(FloatDistribution(0, 1)), "write dasktune.Space(lr=dasktune.Float(low, hi"),
        (lambda: asha(max_steps=0), "ASHA: max_steps must be >= 1, got 0"),
        (lambda: asha(max_steps=-3), "ASHA: max_steps must be >= 1, got -3"),
        (lambda: asha(max_steps=10.5), "ASHA: max_steps must be an int, got 10.5"),
        (lambda: asha(trials=0), "ASHA: trials must be >= 1, got 0"),
        (lambda: asha(sampler="tpe"), "unknown sampler 'tpe'; known: grid, or one of Optuna's"),
        (lambda: asha(sampler=optuna.samplers.TPESampler), "make one: TPESampler()"),
        (lambda: asha(sampler=optuna.pruners.NopPruner()), "sampler must be a sampler of Optuna"),
    ],
    ids=by_text,
)
def test_domains_and_tuners_refuse_bad_arguments(make: Callable[[], object], part: str) -> None:
    assert part in refusal(make)


def asha(space: Any = SPACE, **options: Any) -> dt.algos.ASHA:
    return dt.algos.ASHA(space, **{"trials": 4, "max_steps": 8, **options})


def preview(space: Any) -> object:
    return dt.preview(space, max_steps=2)


def grid(space: Any) -> dt.algos.Grid:
    return dt.algos.Grid(space, max_steps=2)


@pytest.mark.parametrize("kind", TUNERS)
def test_tuner_that_misses_arguments_names_itself(kind: Any) -> None:
    assert f"{kind.__name__} must be given " in refusal(kind)
    many = refusal(lambda: kind(SPACE, 3, 4, 5, 6))
    assert f"{kind.__name__} takes only " in many
    assert f"unknown option of {kind.__name__} 'step'" in refusal(lambda: kind(SPACE, step=3))


class Halving(dt.algos.SHA):
    def __init__(self, space: dt.Space, seeds: int) -> None:
        super().__init__(space, trials=4, max_steps=8, seeds=seeds)  # type: ignore[call-arg]


def test_tuner_of_a_user_names_the_constructor_that_refuses() -> None:
    assert "unknown option of Halving 'trials'" in refusal(lambda: Halving(SPACE, trials=4))  # type: ignore[call-arg]
    assert "unknown option of SHA 'seeds'" in refusal(lambda: Halving(SPACE, seeds=1))


def test_tuner_names_all_missing_arguments() -> None:
    assert refusal(lambda: dt.algos.ASHA(SPACE)) == "ASHA must be given trials"  # type: ignore[call-arg]
    assert refusal(lambda: dt.algos.SHA(SPACE)) == "SHA must be given trials and max_steps"  # type: ignore[call-arg]
    wrong = refusal(lambda: dt.algos.Random(SPACE, max_steps=3, n_trials=9))  # type: ignore[call-arg]
    assert "Random must be given trials" in wrong
    assert "n_trials is Optuna's: write trials=..." in wrong


class Misspelt(Adding):
    def evaluate(self) -> dict[str, float]:
        return {"los": 1.0}


class Accurate(Adding):
    def evaluate(self) -> dict[str, float]:
        return {"accuracy": 1.0}


@pytest.mark.parametrize(
    ("trainer", "options", "part"),
    [
        (Misspelt, {}, "unknown metric 'loss'; known: los"),
        (Accurate, {"metric": "accuracy"}, "direction must be 'maximize' or 'minimize' for the "),
        (Adding, {"direction": "max"}, "must be 'maximize' or 'minimize', got 'max'"),
        (Adding, {"study_name": "x"}, "study_name is Optuna's; write name='x'"),
        (Adding, {"sampler": None}, "write study.optimize(dasktune.algos.Random("),
        (Adding, {"nmae": "x"}, "unknown option of create_study 'nmae'; known: audit, budget,"),
        (Adding, {"storage": "sqlite:///a.db"}, "write database='sqlite:///a.db' and storage="),
        (Adding, {"storage": "s3://"}, "must name a bucket, such as s3://bucket/folder, got 's3:"),
        (Adding, {"storage": "file://"}, "must name a folder, such as file:///data/runs, got 'f"),
        (Adding, {"storage": "foo://x"}, "unknown protocol 'foo'; known: "),
        (Adding, {"storage": "/dev/null"}, "cannot write to /dev/null: "),
        (Adding, {"storage": "/proc/dasktune"}, "cannot write to /proc/dasktune: "),
        (Adding, {"name": ""}, "name must be a string that is not empty, got ''"),
        (Adding(), {}, "give the class itself, Adding, of which workers make objects"),
        (lambda run: None, {}, "a lambda cannot loop over run.steps(): write the training functi"),
        (refusal, {"name": 3}, "name must be a string that is not empty, got 3"),
        (create, {}, "create must take one argument, the run, got (trainer: "),
        (Partial, {}, "- Partial must define train()"),
    ],
    ids=by_text,
)
def test_create_study_refuses_bad_arguments(
    tmp_path: Path, trainer: Any, options: dict[str, Any], part: str
) -> None:
    assert part in refusal(lambda: create(trainer, tmp_path, **options))


def test_create_study_without_arguments_names_them() -> None:
    call: Any = dt.create_study
    needed = "create_study must be given trainer and name and metric, such as create_study("
    assert refusal(call).startswith(needed)


@pytest.mark.parametrize("name", ["a/b", "../x", "\N{SNAKE}", "x" * 5000])
def test_create_study_takes_odd_names_within_its_folder(tmp_path: Path, name: str) -> None:
    create(Adding, tmp_path / "own", name=name).close()
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_create_study_says_what_differs_of_a_known_name(study: Study, tmp_path: Path) -> None:
    again = {"load_if_exists": True}
    assert "open it with load_if_exists=True" in refusal(lambda: create(Adding, tmp_path))
    other = refusal(lambda: create(Other, tmp_path, **again))
    assert "was created with the trainer Adding (" in other
    assert "what differs: class Other (new); another one needs another name" in other
    turned = refusal(lambda: create(Adding, tmp_path, direction="maximize", **again))
    assert "was created with direction 'minimize', got direction 'maximize'" in turned


@pytest.mark.parametrize(
    ("tuner", "options", "part"),
    [
        (asha(), {"n_trials": 20}, "write study.optimize(dasktune.algos.ASHA(space, trials=20, "),
        (asha(), {"timeout": 9}, "timeout is Optuna's; write limits=dasktune.Limits(seconds=9)"),
        (by_text, {}, "got the function by_text; the function that trains belongs to create_study"),
        (optuna.samplers.RandomSampler(), {}, "write dasktune.algos.Random(space, trials=..., "),
        (optuna.pruners.NopPruner(), {}, "dasktune.algos.ASHA and the other tuners prune by them"),
        (dt.algos.ASHA, {}, "got the class ASHA; make one: ASHA(space, ...)"),
        (SPACE, {}, "write dasktune.algos.Random(space, trials=20, max_steps=...)"),
        (asha(), {"callbacks": print}, "callbacks must be a list of dasktune.Callback, got <buil"),
        (asha(), {"callbacks": [print]}, "a callback must be a dasktune.Callback, got <built-in"),
        (asha(), {"client": "tcp://x:1"}, "must be a dask.distributed.Client, got 'tcp://x:1'"),
        (asha(), {"limits": 3}, "limits must be dasktune.Limits, got 3"),
        (asha(), {"workers": 0}, "workers must be a number >= 1"),
    ],
    ids=by_text,
)
def test_optimize_refuses_bad_arguments(
    study: Study, tuner: Any, options: dict[str, Any], part: str
) -> None:
    assert part in refusal(lambda: study.optimize(tuner, **options))
    assert study.trials == []


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda study: study.evaluate([0.1], 2), "hp must be values by name, got [0.1]"),
        (lambda study: study.evaluate({"lr": 0.1}), "evaluate must be given steps"),
        (
            lambda study: study.evaluate({}, 2, steps=3),
            "evaluate takes steps once, got it by its place and by its name",
        ),
        (lambda study: study.evaluate({"lr": 0.1}, 0), "steps must be >= 1, got 0"),
        (lambda study: study.evaluate({"lr": dt.Float(0, 1)}, 2), "lr: a value must be an int"),
        (lambda study: study.enqueue_trial(3), "params must be values by coordinate, got 3"),
        (lambda study: study.enqueue_trial({}), "a queued trial must have at least one value"),
        (lambda study: study.best_trial, "has no trial with a finite value yet"),
    ],
    ids=by_text,
)
def test_study_refuses_bad_arguments(
    study: Study, call: Callable[[Study], object], part: str
) -> None:
    assert part in refusal(lambda: call(study))
    assert study.trials == study.queued == []


def test_study_refuses_trainer_that_cannot_be_sent(tmp_path: Path, two_threads: Client) -> None:
    locked = create(Locked, tmp_path)
    text = refusal(lambda: locked.optimize(asha(), client=two_threads))
    assert (
        "Locked cannot be sent to workers: cannot pickle '_thread.lock' object; make what" in text
    )
    locked.close()


@pytest.mark.parametrize("point", [{"lrr": 1.0}, {"lr": 9.0}], ids=str)
def test_optimize_refuses_queued_point_of_another_space(
    study: Study, two_threads: Client, point: dict[str, float]
) -> None:
    study.enqueue_trial(point)
    tuner = dt.algos.Random(dt.Space(lr=dt.Float(0, 1)), trials=1, max_steps=1)
    text = refusal(lambda: study.optimize(tuner, client=two_threads))
    assert f"queued point {point}: " in text
    assert "study.clear_queue() forgets what is queued" in text


def test_evaluate_takes_right_names_after_wrong_ones(study: Study, two_threads: Client) -> None:
    options: dict[str, Any] = {"client": two_threads, "last_line": False}
    with pytest.raises(TrainerError, match="unknown hyper-parameter 'lr'; known: lrr"):
        study.evaluate({"lrr": 0.1}, 2, **options)
    assert study.evaluate({"lr": 0.5}, 2, **options) == {"loss": 1.0}
    assert refusal(lambda: study.evaluate({"lrr": 0.1}, 2, **options)) == (
        "unknown hyper-parameter 'lrr'; known: lr; did you mean 'lr'?"
    )


def test_run_that_draws_what_is_trained_names_the_seed(
    tmp_path: Path, two_threads: Client, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("first", "second"):
        study = create(Adding, tmp_path, name=name)
        tuner = dt.algos.Random(dt.Space(lr=dt.Float(0, 1)), trials=2, max_steps=2)
        caplog.clear()
        study.optimize(tuner, client=two_threads, last_line=False)
        says = "Random draws the same configurations for the same seed, here 0; another seed"
        assert (says in caplog.text) == (name == "second")
        study.close()


# ------------------------------------------------------------------ while trials are trained


def changed(name: str, value: Callable[..., object]) -> type:
    """Return a trainer with another method."""
    return type("Changed", (Adding,), {name: value})


def raising(name: str, error: Exception | None = None) -> tuple[type, str]:
    error = error or ValueError(f"no {name}")

    def method(*_: object) -> None:
        raise error

    return changed(name, method), f"{type(error).__name__}: {error}"


def returning(name: str, value: object) -> type:
    return changed(name, lambda *_: value)


FAILING = [
    *map(raising, ["build", "setup", "train", "evaluate", "state_dict"]),
    raising("train", RuntimeError("CUDA error: out of memory")),
    (
        changed("setup", lambda self, hp: hp["learning_rate"]),
        "unknown hyper-parameter 'learning_rate'; known: lr",
    ),
    (
        changed("train", lambda self: self.config["epochs"]),
        "unknown config key 'epochs'; known: (none); it is given as create_study(config=",
    ),
    *(
        (returning("evaluate", value), f"evaluate must return metrics by name, got {value!r}")
        for value in (None, 0.5, "0.5", np.zeros(3))
    ),
    (returning("evaluate", {"loss": None}), "metric 'loss' must be a number, got None"),
    (returning("evaluate", {3: 1.0}), "Changed.evaluate must name metrics by strings, got 3"),
    (returning("state_dict", None), "state_dict must return a mapping, got None"),
    (
        returning("state_dict", {"f": refusal}),
        "state['f']: function cannot be stored; a state may hold None, bool, int, ",
    ),
]


@pytest.mark.parametrize(("trainer", "part"), FAILING, ids=by_text)
def test_trial_that_fails_says_why(
    tmp_path: Path, two_threads: Client, trainer: type, part: str
) -> None:
    study = create(trainer, tmp_path)
    study.optimize(grid(SPACE), client=two_threads, check=False, last_line=False)
    assert {trial.state for trial in study.trials} == {dt.TrialState.FAIL}
    assert part in str(study.trials[0].error).splitlines()[-1]
    study.close()


@pytest.mark.process
def test_trainer_that_cannot_load_is_refused(
    tmp_path: Path, two_threads: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "on")
    trainer, text = raising("load_state_dict")
    study = create(trainer, tmp_path)
    # The second trial would load a state.
    tuner = grid(dt.Space(lr=[0.1, MultiStep(0.1, [1], 0.5)], momentum=0.5))
    with pytest.raises(ConfigurationError, match=f"load_state_dict raised {text}"):
        study.optimize(tuner, client=two_threads, last_line=False)
    study.close()


@pytest.mark.parametrize(
    ("trainer", "value"),
    [
        (returning("evaluate", {"loss": np.array(2.0)}), 2.0),
        (returning("evaluate", {"loss": torch.tensor(2.0)}), 2.0),
        (changed("train", lambda self: False), 0.0),
        (changed("setup", lambda self, hp: setattr(self, "lr", hp["momentum"])), 1.0),
    ],
    ids=["array", "tensor", "train", "unchanged"],
)
def test_trial_takes_what_can_be_meant(
    tmp_path: Path, two_threads: Client, trainer: type, value: float
) -> None:
    study = create(trainer, tmp_path)
    space = dt.Space(lr=MultiStep(0.1, [1], 0.5), momentum=0.5)
    study.optimize(grid(space), client=two_threads, check=False, last_line=False)
    assert [trial.value for trial in study.trials] == [value]
    study.close()


def test_best_trial_of_values_that_are_nan_is_refused(tmp_path: Path, two_threads: Client) -> None:
    study = create(returning("evaluate", {"loss": float("nan")}), tmp_path)
    study.optimize(grid(SPACE), client=two_threads, check=False, last_line=False)
    assert "no trial with a finite value" in refusal(lambda: study.best_trial)
    study.close()


def test_run_ends_when_trials_fail_alike(
    tmp_path: Path, two_threads: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, text = raising("train")
    study = create(trainer, tmp_path)
    space = dt.Space(lr=dt.Float(0, 1))
    tuner = dt.algos.Random(space, trials=200, max_steps=2)
    study.optimize(tuner, client=two_threads, check=False)
    failed = [trial for trial in study.trials if trial.state is dt.TrialState.FAIL]
    assert 10 <= len(failed) < 30
    shown = capsys.readouterr().err
    assert f"failed alike: {text} (test_bad_inputs.py:" in shown
    assert "raise error" in shown
    study.close()
