"""Every example trains, resumes exactly, and merges as much as its text says."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import dasktune as dt
from dasktune.sequences import Exponential, Piecewise
from dasktune.testing import TunerConformance
from dasktune.trainer import fingerprint, run_alone
from tests.forked import fork_for_resume_checks

FOLDER = Path(__file__).parents[2] / "examples"
TRAINERS = {
    "digits": "DigitsTrainer",
    "numpy_regression": "SoftmaxRegression",
    "sklearn_sgd": "SGDTrainer",
}
TUNERS = {
    "asha": "digits",
    "bucket": "digits",
    "own_tuner": "numpy_regression",
    "slurm_s3": "digits",
}
"""Examples that show a tuner, and whose trainer they take."""

BY_THEMSELVES = {"cartpole"}
"""Examples with a test file of their own."""

OF_FRAMEWORKS = {"jax_decay", "lightgbm_sampling", "sklearn_perceptron", "xgboost_rates"}
"""Examples that tests/integrations runs, with the framework that they need."""

HP = {
    "digits": {
        "lr": Exponential(0.05, gamma=0.9),
        "batch_size": Piecewise([64, 200], boundaries=[2]),
        "momentum": 0.9,
    },
    "numpy_regression": {
        "lr": Exponential(0.1, gamma=0.9),
        "batch_size": Piecewise([32, 48], boundaries=[2]),
        "momentum": 0.9,
    },
    "sklearn_sgd": {
        "lr": Exponential(0.05, gamma=0.9),
        "alpha": 1e-4,
        "penalty": Piecewise(["l2", "l1"], boundaries=[2]),
    },
}


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Import an example by its path, as the command does."""
    name = f"example_{request.param}"
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{request.param}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


def trainer(module: ModuleType) -> type:
    found = getattr(module, TRAINERS[module.__name__.removeprefix("example_")])
    assert isinstance(found, type)
    return found


def hp(module: ModuleType) -> dict[str, object]:
    return HP[module.__name__.removeprefix("example_")]


every = pytest.mark.parametrize("example", TRAINERS, indirect=True)
digits = pytest.mark.parametrize("example", ["digits"], indirect=True)


def test_every_example_is_tested() -> None:
    tested = {*TRAINERS, *TUNERS, *BY_THEMSELVES, *OF_FRAMEWORKS}
    assert {path.stem for path in FOLDER.glob("*.py")} == tested


@every
def test_it_learns(example: ModuleType) -> None:
    metrics = run_alone(trainer(example), hp(example), 2).metrics
    chance = 0.1
    assert metrics[2]["accuracy"] > 2 * chance


@every
@pytest.mark.process
def test_it_resumes_exactly(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_for_resume_checks(monkeypatch)
    report = dt.check_resume(trainer(example), hp(example), split=1, total=3)
    assert report.ok, str(report)


@every
def test_its_study_and_tuner_can_be_made(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = example.study()
    assert study.trials == []
    assert example.tuner().max_steps in (24, 200)


@digits
def test_digits_trains_41_percent(example: ModuleType) -> None:
    tuner = example.tuner()
    cost = dt.preview(tuner.space, max_steps=tuner.max_steps, workers=2)
    assert (cost.steps_requested, cost.steps_unique) == (864, 356)
    assert round(100 * 356 / 864) == 41


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Write colour images of 6 x 5 pixels whose mean tells their class."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 90)
    x = rng.integers(0, 40, (90, 6, 5, 3)) + 100 * y[:, None, None, None]
    path = tmp_path / "images.npz"
    np.savez(path, x=x.clip(0, 255).astype(np.uint8), y=y.astype(np.uint8))
    return path


@digits
def test_digits_takes_images_from_a_path(example: ModuleType, images: Path) -> None:
    run = run_alone(trainer(example), hp(example), 12, config={"data": str(images)})
    assert run.metrics[12]["accuracy"] > 0.6


@digits
def test_grey_images_become_one_channel(example: ModuleType, tmp_path: Path) -> None:
    x = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    np.savez(tmp_path / "grey.npz", x=x, y=np.array([0, 1]))
    images, classes = example.load_images(str(tmp_path / "grey.npz"))
    assert images.shape == (2, 1, 3, 4)
    assert images[1, 0, 2, 3] == np.float32(23 / 255)
    assert classes.tolist() == [0, 1]


@digits
def test_what_the_file_holds_counts_not_where_it_lies(
    example: ModuleType, images: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "moved.npz"
    moved.write_bytes(images.read_bytes())
    changed = tmp_path / "changed.npz"
    np.savez(changed, x=np.zeros((4, 8, 8)), y=np.array([0, 1, 0, 1]))
    digests = [
        fingerprint(trainer(example), config).digest
        for config in ({}, *({"data": str(path)} for path in (images, moved, changed)))
    ]
    assert digests[1] == digests[2]
    assert len(set(digests)) == 3


@pytest.fixture
def tuners_example(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(request.param, FOLDER / f"{request.param}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop(TUNERS[request.param], None)


def curve(values: Mapping[str, object], step: int) -> float:
    """Return an error that falls with the training, faster with a larger rate."""
    lr = values["lr"]
    assert isinstance(lr, float)
    return 1 / (1 + lr * step)


@pytest.mark.parametrize("tuners_example", ["own_tuner"], indirect=True)
def test_a_tuner_of_ones_own_keeps_doubling_the_better_half(tuners_example: ModuleType) -> None:
    found = dt.simulate(tuners_example.tuner(), curve, workers=4)
    assert Counter(one.steps for one in found.trials) == {5: 8, 10: 4, 20: 2, 40: 1, 80: 1}
    assert found.best_trial is not None
    assert found.best_trial.params["lr"] == max(one.params["lr"] for one in found.trials)  # type: ignore[type-var]


class TestDoubling(TunerConformance):
    def make(self, seed: int) -> dt.algos.Tuner:
        sys.path.insert(0, str(FOLDER))
        try:
            module = importlib.import_module("own_tuner")
        finally:
            sys.path.remove(str(FOLDER))
        found: dt.algos.Tuner = module.Doubling(dt.Space(lr=dt.Float(0, 1)), 8, 40, seed)
        return found


@pytest.mark.parametrize("tuners_example", ["asha"], indirect=True)
def test_asha_over_schedules_promotes_what_tpe_proposes(
    tuners_example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tuners_example.study().trials == []
    found = dt.simulate(tuners_example.tuner(), curve, workers=2)
    steps = Counter(one.steps for one in found.trials)
    assert steps[16] >= 4
    assert steps[16] < 20
    assert found.summary()["merge_rate"] >= 1.0
