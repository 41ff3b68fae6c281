from fractions import Fraction

import numpy as np
import pytest
import torch

from dasktune.errors import InternalError, StateError, TrainerError
from dasktune.sequences import MultiStep
from dasktune.trainer.base import Trainer
from dasktune.trainer.lifecycle import TrainerRun, run_alone


class Recorder(Trainer):
    """Writes down every call; its state is the list of them."""

    metrics = {"loss": 1.0}  # noqa: RUF012

    def build(self, hp):
        self.calls = [("build", dict(hp), dict(self.config), self.seed, self.device)]

    def setup(self, hp):
        self.calls.append(("setup", dict(hp)))

    def train(self):
        self.calls.append("train")

    def evaluate(self):
        return self.metrics

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls.append(("load", state))


def start(values, trainer_class=Recorder, config=None):
    return TrainerRun.start(trainer_class, values, config=config or {}, seed=7, device="cpu")


def test_calls_of_a_run_from_the_start():
    run = start({"lr": 0.1, "width": 8}, config={"data": "x"})
    for lr in (0.1, 0.1, 0.2):
        run.advance({"lr": lr, "width": 8})
    assert run.step == 3
    assert run.trainer.calls == [
        ("build", {"lr": 0.1, "width": 8}, {"data": "x"}, 7, "cpu"),
        ("setup", {"lr": 0.1, "width": 8}),
        "train",
        "train",
        ("setup", {"lr": 0.2}),
        "train",
    ]


def test_calls_of_a_resumed_run():
    run = TrainerRun.resume(
        Recorder,
        step=5,
        first_values={"lr": 1, "width": 8},
        last_values={"lr": 2, "width": 8},
        state={"s": 1},
        config={},
        seed=7,
        device="cuda:1",
    )
    run.advance({"lr": 2, "width": 8})
    run.advance({"lr": 3, "width": 8})
    assert run.step == 7
    assert run.trainer.calls == [
        ("build", {"lr": 1, "width": 8}, {}, 7, "cuda:1"),
        ("setup", {"lr": 2, "width": 8}),
        ("load", {"s": 1}),
        "train",
        ("setup", {"lr": 3}),
        "train",
    ]


def test_a_state_at_step_0_is_not_resumed():
    with pytest.raises(InternalError, match="got 0"):
        TrainerRun.resume(
            Recorder, step=0, first_values={}, last_values={}, state={}, config={}, seed=0
        )


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        (1, 1, False),
        (1, 1.0, True),
        (1, True, True),
        (0.0, -0.0, False),
        ("adam", "a" + "dam", False),
        ("adam", "sgd", True),
        (None, 0, True),
        (None, None, False),
        (10**20, 10**20, False),
    ],
)
def test_setup_receives_strictly_changed_values(before, now, changed):
    run = start({"x": before})
    run.advance({"x": before})
    run.advance({"x": now})
    assert len(run.trainer.calls) == (5 if changed else 4)


def test_the_callers_dict_may_be_reused():
    values = {"lr": 0.1}
    run = start(values)
    run.advance(values)
    values["lr"] = 0.2
    run.advance(values)
    assert ("setup", {"lr": 0.2}) in run.trainer.calls


def test_config_of_the_next_trainer_is_a_copy():
    config = {"layers": [1, 2]}
    start({}, config=config).trainer.config["layers"].append(3)
    assert config == {"layers": [1, 2]}


def test_changed_names_are_refused():
    run = start({"lr": 1})
    run.advance({"lr": 1})
    with pytest.raises(InternalError, match=r"\['lr'\] became \['lr', 'width'\]"):
        run.advance({"lr": 1, "width": 2})


def evaluated(metrics):
    trainer_class = type("Judge", (Recorder,), {"metrics": metrics})
    return start({}, trainer_class).evaluate()


def test_metrics_become_floats():
    metrics = evaluated(
        {
            "int": 3,
            "bool": True,
            "fraction": Fraction(1, 4),
            "float32": np.float32(0.1),
            "array": np.array(2.5),
            "numpy_bool": np.bool_(True),
            "tensor": torch.tensor(1.5),
            "bf16": torch.tensor(0.5, dtype=torch.bfloat16),
            "nan": float("nan"),
        }
    )
    assert all(type(value) is float for value in metrics.values())
    assert metrics["float32"] == float(np.float32(0.1))
    assert metrics["nan"] != metrics["nan"]
    del metrics["float32"], metrics["nan"]
    assert metrics == {
        "int": 3,
        "bool": 1,
        "fraction": 0.25,
        "array": 2.5,
        "numpy_bool": 1,
        "tensor": 1.5,
        "bf16": 0.5,
    }


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (0.5, r"Judge.evaluate must return metrics by name, got 0.5 \(float\)"),
        (None, r"Judge.evaluate must return metrics by name, got None \(NoneType\)"),
        ({1: 0.5}, "must name metrics by strings, got 1"),
        ({"loss": "0.5"}, r"metric 'loss' must be a number, got '0.5' \(str\)"),
        ({"loss": None}, "metric 'loss' must be a number"),
        ({"loss": 1j}, "metric 'loss' must be a number"),
        ({"loss": np.array([0.5])}, "metric 'loss' must be a number"),
        ({"loss": torch.tensor([0.5])}, "metric 'loss' must be a number"),
        ({"loss": torch.tensor(1j)}, "metric 'loss' must be a number"),
    ],
)
def test_invalid_metrics_are_refused(metrics, message):
    with pytest.raises(TrainerError, match=message):
        evaluated(metrics)


def test_a_state_must_be_a_mapping():
    trainer_class = type("Odd", (Recorder,), {"state_dict": lambda self: [1]})
    with pytest.raises(StateError, match=r"state: state_dict must return a mapping, got \[1\]"):
        start({}, trainer_class).state()


def test_run_alone_gives_metrics_and_copies_of_states():
    run = run_alone(
        Recorder, {"lr": MultiStep(1.0, [2], 0.5)}, 5, seed=3, report_every=2, states_at=(1, 5)
    )
    assert sorted(run.metrics) == [2, 4, 5]
    assert run.states[1]["calls"] == [
        ("build", {"lr": 1.0}, {}, 3, "cpu"),
        ("setup", {"lr": 1.0}),
        "train",
    ]
    assert run.states[5]["calls"][3:] == ["train", ("setup", {"lr": 0.5}), *["train"] * 3]
