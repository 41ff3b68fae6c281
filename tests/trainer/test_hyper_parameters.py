"""The mapping that `build` and `setup` get, against the plain dicts that they got before."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import dasktune as dt
from dasktune.cli.study_file import load
from dasktune.errors import ConfigurationError, StateError, TrainerError
from dasktune.sequences import MultiStep, as_sequence
from dasktune.storage.codec import encode
from dasktune.trainer.lifecycle import TrainerRun, run_alone
from dasktune.types import Config, HyperParameters
from tests import toy_trainers
from tests.forked import fork_for_resume_checks
from tests.trainer.test_table_of_trainers import ROWS, Outcome

STEPS, SPLIT = 6, 4
DROP = {"lr": MultiStep(0.1, milestones=[3, 5], gamma=0.5), "width": 8}
"""A value that changes, and one that does not."""


class PlainRun(TrainerRun):
    """The calls of `TrainerRun` before: with dicts of the changed values, and of all."""

    @classmethod
    def begin(cls, kind: type, first: Mapping[str, Any], last: Any, state: Any) -> PlainRun:
        trainer: Any = kind()
        trainer.config, trainer.seed, trainer.device = {}, 0, "cpu"
        if hasattr(trainer, "building"):
            with trainer.building():
                trainer.build(dict(first))
        else:
            trainer.build(dict(first))
        if state is not None:
            trainer.setup(dict(last))
            trainer.load_state_dict(state)
        return cls(trainer, SPLIT if state is not None else 0, last)

    def advance(self, values: Mapping[str, Any]) -> None:
        before = self._values
        changed = {
            name: value for name, value in values.items() if before is None or before[name] != value
        }
        self._values = dict(values)
        if changed:
            self.trainer.setup(changed)
        self.trainer.train()
        self.step += 1


def values_at(step: int, given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: as_sequence(value)(step) for name, value in given.items()}


def new(kind: type, first: Any, last: Any, state: Any) -> TrainerRun:
    if state is None:
        return TrainerRun.start(kind, first, config={}, seed=0)
    return TrainerRun.resume(
        kind, step=SPLIT, first_values=first, last_values=last, state=state, config={}, seed=0
    )


def trained(begin: Any, kind: type, given: Mapping[str, Any]) -> list[Any]:
    """Return metrics and digests of each step, then those after resuming in the middle."""
    seen: list[Any] = []
    kept: Any = None
    for start in (0, SPLIT):
        last = values_at(start - 1, given) if start else None
        try:
            run = begin(kind, values_at(0, given), last, kept if start else None)
        except (ConfigurationError, StateError, TrainerError, RuntimeError) as error:
            return [*seen, str(error.__cause__ or error)]
        for step in range(start, STEPS):
            run.advance(values_at(step, given))
            seen.append(run.evaluate())
            try:
                state = run.state()
                seen.append(encode(state).digest)
                kept = copy.deepcopy(state) if run.step == SPLIT else kept
            except StateError as error:
                seen.append(str(error.__cause__ or error))
                kept = {} if kept is None else kept
    return seen


RATE = {"lr": DROP["lr"]}
EXAMPLES = {
    "numpy_regression": RATE | {"momentum": 0.9, "batch_size": 32},
    "sklearn_sgd": RATE | {"alpha": 1e-4, "penalty": "l2"},
    "digits": RATE | {"momentum": 0.9, "batch_size": 32, "weight_decay": 0.0},
    "cartpole": RATE | {"discount": 0.98, "entropy": 0.01, "hidden": 4},
}

ALONE = (Outcome.EXACT, Outcome.STOPPED)
"""Outcomes of trainers that keep nothing outside of themselves: a second run is as the first."""

WITH_PROCESSES = ("TorchLoaderWorkers", "TorchLoaderPersistent")
"""Trainers that start processes; their calls are those of `TorchLoader`."""


@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize(
    "kind",
    [
        *(row.kind for row in ROWS if row.outcome in ALONE and row.name not in WITH_PROCESSES),
        toy_trainers.Adding,
        toy_trainers.Still,
    ],
    ids=lambda kind: kind.__name__,
)
def test_trainers_of_before_give_the_same_bits(kind):
    assert trained(new, kind, DROP) == trained(PlainRun.begin, kind, DROP)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_give_the_same_bits(name, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = load(Path(__file__).parents[2] / "examples" / f"{name}.py").module
    monkeypatch.delitem(sys.modules, module.__name__)
    (kind,) = (
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, dt.Trainer)
        and each.__module__ == module.__name__
    )
    given = EXAMPLES[name]
    assert trained(new, kind, given) == trained(PlainRun.begin, kind, given)


class Reading(dt.Trainer):
    """Sums up what it reads in `setup`, also what has not changed."""

    def build(self, hp):
        self.total, self.shown = hp["width"], []

    def setup(self, hp):
        self.total += hp["lr"] * hp["width"]
        self.shown.append((sorted(hp), "width" in hp, hp.get("width", "-"), len(hp.items())))

    def train(self): ...

    def evaluate(self):
        return {"total": self.total}

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


def test_setup_reads_a_value_that_has_not_changed():
    run = TrainerRun.start(Reading, {"lr": 1, "width": 8}, config={}, seed=0)
    for lr in (1, 1, 2):
        run.advance({"lr": lr, "width": 8})
    assert run.trainer.total == 8 + 8 + 16
    assert run.trainer.shown == [
        (["lr", "width"], True, 8, 2),
        (["lr"], False, "-", 1),
    ]


@pytest.mark.parametrize("place", ["build", "setup", "train"])
def test_an_unknown_name_lists_the_known_ones(place):
    class Misspelt(Reading):
        def build(self, hp):
            super().build(hp)
            self.hp = hp
            if place == "build":
                hp["lrr"]

        def setup(self, hp):
            if place == "setup" and "width" not in hp:
                hp["lrr"]

        def train(self):
            if place == "train":
                self.hp["lrr"]

    with pytest.raises(KeyError) as error:
        run_alone(Misspelt, DROP, 5)
    assert isinstance(error.value, TrainerError)
    assert str(error.value) == "unknown hyper-parameter 'lrr'; known: lr, width; did you mean 'lr'?"
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


class Short(dt.TorchTrainer):
    """Has no `setup`."""

    def build(self, hp):
        self.total, self.hp = 0.0, hp

    def train(self):
        self.total += self.hp["lr"]

    def evaluate(self):
        return {"total": self.total}


def test_setup_is_optional():
    alone = run_alone(Short, {"lr": 0.5}, 4, states_at=[2])
    assert alone.metrics[4] == {"total": 2.0}
    run = TrainerRun.resume(
        Short,
        step=2,
        first_values={"lr": 0.5},
        last_values={"lr": 0.5},
        state=alone.states[2],
        config={},
        seed=0,
    )
    run.advance({"lr": 0.5})
    assert run.evaluate() == alone.metrics[3]


def test_a_change_without_setup_is_refused():
    with pytest.raises(TrainerError) as error:
        run_alone(Short, DROP, 4)
    assert str(error.value) == (
        "Short must define setup(): the value of 'lr' changes after step 3, and would have no "
        "effect"
    )


class Held(dt.TorchTrainer):
    """Holds what `setup` gets, and reads in the step what has not changed."""

    def build(self, hp):
        self.total = torch.zeros(())

    def setup(self, hp):
        self.hp = hp

    def train(self):
        self.total += self.hp["lr"] * self.hp["width"]

    def evaluate(self):
        return {"total": self.total}


@pytest.mark.process
def test_a_held_mapping_is_resumed(monkeypatch):
    fork_for_resume_checks(monkeypatch)
    assert dt.check_resume(Held, DROP).ok


def test_it_is_stored_as_the_plain_dict_of_before():
    shown = HyperParameters({"lr": 0.1}, {"lr": 0.1, "width": 8})
    assert encode({"hp": shown}).digest == encode({"hp": {"lr": 0.1}}).digest
    for copied in (copy.deepcopy(shown), pickle.loads(pickle.dumps(shown))):
        assert (copied, copied["width"]) == (shown, 8)


def test_a_config_is_stored_as_the_plain_dict_of_before():
    assert encode({"c": Config(rate=0.5)}).digest == encode({"c": {"rate": 0.5}}).digest
