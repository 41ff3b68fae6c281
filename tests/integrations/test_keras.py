"""The trainer of Keras: exact, as Keras itself trains, and clear about mistakes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasktune as dt
from dasktune.errors import ConfigurationError, StateError, TrainerError
from dasktune.sequences import MultiStep, Piecewise
from dasktune.trainer.check_resume.check import check_resume
from dasktune.trainer.check_resume.new_process import run_in_new_process
from dasktune.trainer.code import pack
from dasktune.trainer.fingerprint.fingerprint import fingerprint
from dasktune.trainer.generators import seed_global
from dasktune.trainer.lifecycle import run_alone
from tests.forked import run_forked
from tests.integrations.exact import assert_merges, assert_resumes

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.framework("keras"),
    # Keras converts its variables in the manner of NumPy 1.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

X = np.random.default_rng(1).random((64, 4), np.float32)
Y = X.sum(1)


class Counting(keras.callbacks.Callback):
    """Keeps a number that later steps depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs += 1
        rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        self.model.optimizer.learning_rate = rate * (1 - 0.01 * self.epochs)


class Batches(keras.utils.PyDataset):
    """Shuffles after each epoch, as the guide of Keras does."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.order = size, np.arange(64)
        self.generator = np.random.default_rng(3)

    def __len__(self) -> int:
        return len(X) // self.size

    def __getitem__(self, index: int) -> Any:
        rows = self.order[index * self.size :][: self.size]
        noise = self.generator.normal(0, 0.1, (len(rows), 4)).astype("float32")
        unseeded = keras.ops.convert_to_numpy(keras.random.normal((4,)))
        return X[rows] + noise + 0.1 * unseeded, Y[rows]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)


class Own(keras.Model):
    """A model of a class of its own, with layers that are built when it is first called.

    One has weights of bfloat16, a type that NumPy does not have.
    """

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(8, "relu", dtype="bfloat16")
        self.out = keras.layers.Dense(1)
        self.drop = keras.layers.Dropout(0.2)
        self.weight = weight

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.weight * self.out(self.drop(self.hidden(inputs), training=training))

    def hyperparameters_changed(self, changed: Any) -> None:
        self.weight = changed.get("weight", self.weight)


def net(optimizer: Any, width: int = 8) -> Any:
    layers = [
        keras.Input((4,)), keras.layers.Dense(width, "relu"), keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2), keras.layers.Dense(1),
    ]  # fmt: skip
    model = keras.Sequential(layers)
    model.compile(optimizer, "mse", metrics=[keras.metrics.MeanAbsoluteError()])
    return model


def momentum(lr: float, batch_size: int = 16, weight_decay: float = 0.01, width: int = 8) -> Any:
    optimizer = keras.optimizers.SGD(lr, momentum=0.9, weight_decay=weight_decay)
    data = {"x": X, "y": Y, "batch_size": batch_size, "validation_split": 0.25}
    return net(optimizer, width), data


def called_back(lr: float) -> Any:
    kinds = keras.callbacks
    callbacks = [
        kinds.EarlyStopping("loss", patience=9, restore_best_weights=True),
        kinds.ReduceLROnPlateau("val_loss", patience=1, min_delta=1.0),
        kinds.ModelCheckpoint("best.keras", save_best_only=True),
        kinds.SwapEMAWeights(swap_on_epoch=True),
        Counting(),
    ]
    optimizer = keras.optimizers.AdamW(lr, use_ema=True, gradient_accumulation_steps=3)
    data = {"x": X, "y": Y, "batch_size": 16, "validation_data": (X, Y)}
    return net(optimizer), {**data, "callbacks": callbacks, "epochs": 5}


def generated(size: int) -> Any:
    schedule = keras.optimizers.schedules.CosineDecay(0.01, 20)
    return net(keras.optimizers.Adam(schedule)), {"x": Batches(size), "validation_data": (X, Y)}


def loaded(lr: float, weight: float = 1.0) -> Any:
    data = torch.utils.data.TensorDataset(torch.as_tensor(X), torch.as_tensor(Y))
    generator = torch.Generator().manual_seed(3)
    loader = torch.utils.data.DataLoader(data, 16, shuffle=True, generator=generator)
    model = Own(weight)
    model.compile(keras.optimizers.Adam(lr), "mse", metrics=["mae"])
    data = {"x": loader, "shuffle": False, "validation_data": (X, Y)}
    return model, {**data, "validation_freq": 2}


def stopped(lr: float) -> Any:
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=100.0)
    data = {"x": X, "y": Y, "validation_data": (X, Y)}
    return net(keras.optimizers.SGD(lr)), {**data, "callbacks": [stopping], "epochs": 9}


def trainer(make: Any) -> Any:
    return dt.integrations.keras.trainer(make)


CASES = [
    (momentum, {"lr": MultiStep(0.05, [2], 0.1), "batch_size": Piecewise([16, 8], [3])}),
    (momentum, {"lr": 0.01, "weight_decay": Piecewise([0.01, 0.5], [2])}),
    (called_back, {"lr": 0.01}),
    (generated, {"size": Piecewise([8, 16], [3])}),
    (loaded, {"lr": 0.01, "weight": Piecewise([1.0, 2.0], [2])}),
    (stopped, {"lr": 0.05}),
]


@pytest.mark.parametrize(("make", "hp"), CASES)
def test_resumes_over_changes_of_values_and_callbacks(make: Any, hp: Any) -> None:
    assert_resumes(trainer(make), hp, 5)


@pytest.mark.parametrize(
    ("make", "hp"),
    [(momentum, {"lr": 0.05}), (called_back, {"lr": 0.01}), (generated, {"size": 8})],
)
def test_metrics_are_those_of_keras_itself(
    make: Any, hp: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lone = run_alone(trainer(make), hp, 5)
    monkeypatch.chdir(tmp_path)  # where a checkpoint is written

    def history() -> Any:
        torch.set_num_threads(1)  # as trainers do
        seed_global(0)
        model, arguments = make(**hp)
        return model.fit(**{**arguments, "epochs": 5, "verbose": 0}).history

    with ThreadPoolExecutor(1) as pool:  # a new thread, to which Keras gives a state of its own
        by_name = pool.submit(history).result()
    last = {name: values[4] for name, values in by_name.items() if len(values) == 5}
    assert last == {name: lone.metrics[5][name] for name in last}
    assert "loss" in last


def test_an_epoch_without_validation_reports_none() -> None:
    metrics = run_alone(trainer(loaded), {"lr": 0.01}, 3).metrics
    assert ["val_loss" in metrics[step] for step in (1, 2, 3)] == [False, True, False]


def test_a_trial_that_a_callback_has_stopped_stays_as_it_is() -> None:
    lone = run_alone(trainer(stopped), {"lr": 0.05}, 4)
    assert lone.metrics[1] != lone.metrics[2] == lone.metrics[3] == lone.metrics[4]


def test_names_do_not_depend_on_models_made_before() -> None:
    first, second = (run_alone(trainer(momentum), {"lr": 0.05}, 1) for _ in range(2))
    assert first.metrics == second.metrics
    assert set(first.metrics[1]) >= {"loss", "mean_absolute_error", "val_mean_absolute_error"}


def test_merged_trials_equal_lone_ones(tmp_path: Path) -> None:
    space = dt.Space(lr=[0.05, MultiStep(0.05, [3], 0.5)], batch_size=[16])
    study = dt.create_study(
        trainer(momentum), name="net", storage=str(tmp_path / "runs"), metric="val_loss",
        direction="minimize",
    )  # fmt: skip
    assert_merges(study, dt.algos.Grid(space, max_steps=4), (8, 5))


def test_the_check_passes() -> None:
    execute = partial(run_in_new_process, execute=run_forked)
    report = check_resume(trainer(called_back), {"lr": 0.01}, split=2, total=4, run=execute)
    assert report.ok, report.differences


def test_a_state_of_another_model_is_refused() -> None:
    state = run_alone(trainer(momentum), {"lr": 0.05}, 1, states_at=[1]).states[1]
    other = trainer(momentum)()
    other.config, other.seed, other.device = {}, 0, "cpu"
    with other.building():
        other.build({"lr": 0.05, "width": 4})
    with pytest.raises(StateError, match=r"dense/kernel.*a variable of float32 \(4, 8\), got"):
        other.load_state_dict(state)


def fitted(**arguments: Any) -> Any:
    return lambda: (net("sgd"), {"x": X, "y": Y, **arguments})


def scheduled(lr: float) -> Any:
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(lr, 20))
    return net(optimizer), {"x": X, "y": Y}


def reduced(lr: float) -> Any:
    callback = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9)
    return net(keras.optimizers.SGD(lr)), {"x": X, "y": Y, "callbacks": callback}


def twins() -> Any:
    class Twins(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.layers.Dense(4, name="dense")
            self.out = keras.layers.Dense(1, name="dense")

        def call(self, inputs: Any) -> Any:
            return self.out(self.inner(inputs))

    model = Twins()
    model.compile("sgd", "mse")
    return model, {"x": X, "y": Y}


@pytest.mark.parametrize(
    ("make", "hp", "message"),
    [
        (twins, {}, "each layer must have a name of its own, got several of twins/dense"),
        (lambda: 3, {}, "must return a compiled model and a dict with the arguments"),
        (fitted(epoch=3), {}, "fit has no argument 'epoch'; it has batch_size, callbacks"),
        (fitted(steps_per_epoch=3), {}, "steps_per_epoch must not be given: each epoch must begin"),
        (fitted(x=iter(X)), {}, "x must be arrays, a keras.utils.PyDataset or a DataLoader"),
        (fitted(epochs=1), {}, "all 1 epochs of fit have been trained"),
        (
            fitted(callbacks=[keras.callbacks.BackupAndRestore("folder")]), {},
            "BackupAndRestore must be left out",
        ),
        (momentum, {"lr": 0.1, "depth": 2}, "nothing takes the hyper-parameter 'depth'"),
        (momentum, {"lr": 0.1, "width": Piecewise([4, 8], [1])}, "momentum is called once"),
        (scheduled, {"lr": MultiStep(0.1, [1], 0.1)}, "a CosineDecay sets it, too"),
        (reduced, {"lr": MultiStep(0.1, [1], 0.1)}, "a LearningRateScheduler sets it, too"),
    ],
)  # fmt: skip
def test_mistakes_are_refused(make: Any, hp: Any, message: str) -> None:
    with pytest.raises((ConfigurationError, TrainerError), match=message):
        run_alone(trainer(make), hp, 2)


def test_a_model_instead_of_a_function_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="make must be a function that returns a compiled"):
        trainer(keras.Sequential())


def test_a_worker_with_another_backend_is_refused() -> None:
    kind = trainer(momentum)
    before = fingerprint(kind, {}).digest
    kind.backend = "another"
    assert fingerprint(kind, {}).digest != before
    with pytest.raises(ConfigurationError, match="start workers with KERAS_BACKEND=another"):
        run_alone(kind, {"lr": 0.1}, 1)


def test_workers_import_keras_with_the_backend_of_the_study(tmp_path: Path) -> None:
    (tmp_path / "code").write_bytes(pickle.dumps(pack(trainer(momentum))))
    program = (
        "import pickle; from dasktune.trainer.code import unpack;"
        "unpack(pickle.load(open('code', 'rb')));"
        "import keras; print(keras.backend.backend())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment["KERAS_HOME"] = str(tmp_path)
    ended = run_forked([sys.executable, "-c", program], cwd=tmp_path, env=environment, text=True)
    assert ended.stdout.strip() == keras.backend.backend(), ended.stderr


@pytest.mark.framework("jax")
def test_resumes_with_jax_in_place_of_torch() -> None:
    some = "resumes_over and (called_back or loaded)"
    ended = subprocess.run(
        [*(sys.executable, "-m", "pytest", "-q", "-n", "0"), __file__, "-k", some],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout
