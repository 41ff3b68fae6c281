"""The code that a trainer gets in a process in which others have trained."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping
from decimal import getcontext
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import dasktune as dt
from dasktune._worker import clean_process
from dasktune._worker.clean_process import CleanProcess
from dasktune._worker.job import Job
from dasktune.trainer.code import pack, unpack
from dasktune.trainer.lifecycle import TrainerRun

COUNT = {"n": 0}
ROWS: dict[str, list[int]] = {}
SETTINGS = {"momentum": 0.0}


class Toy(dt.Trainer):
    """A trainer whose loss says what it has seen of others."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x = 0.0

    def train(self) -> None:
        self.x += 1

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x = state["x"]


class Counts(Toy):
    def train(self) -> None:
        COUNT["n"] += 1
        self.x += COUNT["n"]


class OfItsClass(Toy):
    seen: ClassVar[list[int]] = []

    def train(self) -> None:
        self.seen.append(1)
        self.x += len(self.seen)


class OfADefault(Toy):
    def train(self, seen: list[int] = []) -> None:  # noqa: B006
        seen.append(1)
        self.x += len(seen)


@lru_cache
def rounded(x: float) -> float:
    return float(COUNT["n"])


class Cached(Toy):
    def train(self) -> None:
        COUNT["n"] += 1
        self.x += rounded(1.0)


class Sized(Toy):
    """Loads its data once, whatever size is asked for."""

    def build(self, hp: Mapping[str, Any]) -> None:
        if "rows" not in ROWS:
            ROWS["rows"] = list(range(hp["size"]))
        self.x = 0.0

    def train(self) -> None:
        self.x = float(len(ROWS["rows"]))


class Loaded(Sized):
    """Loads the same data for all."""

    built: ClassVar[list[str]] = []

    def build(self, hp: Mapping[str, Any]) -> None:
        if "rows" not in ROWS:
            ROWS["rows"] = [1, 2, 3]
        self.x = 0.0


class Branching(Toy):
    def build(self, hp: Mapping[str, Any]) -> None:
        self.x = 0.0
        if hp["mode"] == "b":
            SETTINGS["momentum"] = 1.0

    def train(self) -> None:
        self.x += 1 + SETTINGS["momentum"]


class Patching(Toy):
    """Changes what all code of the process uses: functions of packages, hooks, the processor."""

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x = 0.0
        if hp["mode"] == "b":
            np.linalg.own = 1.0  # type: ignore[attr-defined]
            np.linalg.norm = no_norm
            torch.nn.Identity.forward = doubled
            torch.nn.modules.module.register_module_forward_hook(plus_one)
            torch.set_flush_denormal(True)

    def train(self) -> None:
        self.x += float(np.linalg.norm(np.ones(1))) + getattr(np.linalg, "own", 0.0)
        self.x += float(torch.nn.Identity()(torch.ones(1))) + (sys.float_info.min * 0.5 == 0.0)


def no_norm(_x: Any) -> float:
    return 10.0


def doubled(_module: Any, x: Any) -> Any:
    return 2 * x


def plus_one(_module: Any, _given: Any, x: Any) -> Any:
    return x + 1


def job_of(trainer_class: type, *, is_own: bool = False) -> Job:
    code = pack(trainer_class)
    return Job(
        trainer_class=unpack(code),
        config={},
        device="cpu",
        store="memory://",
        report_every=1,
        code=code,
        is_own_process=is_own,
    )


def trained(process: CleanProcess, hp: Mapping[str, Any], *, is_alone: bool = False) -> float:
    """Return the loss after 3 steps of a trial in a process, as a worker trains it."""
    again = is_alone
    while True:
        made = process.prepare(hp, 0, is_alone=again)
        run = TrainerRun.start(made, hp, config={}, seed=0)
        if process.accepts_build():
            break
        again = True
    for _ in range(3):
        run.advance(hp)
    return run.evaluate()["loss"]


@pytest.mark.parametrize("trainer_class", [Counts, OfItsClass, OfADefault, Cached])
def test_a_trial_sees_no_counter_of_another(trainer_class: type) -> None:
    process = CleanProcess(job_of(trainer_class))
    losses = {trained(process, {"k": k}) for k in range(3)}
    assert losses == {trained(CleanProcess(job_of(trainer_class)), {"k": 0})}


def test_a_wrong_cache_serves_no_other_trial() -> None:
    process = CleanProcess(job_of(Sized))
    assert [trained(process, {"size": size}) for size in (10, 20, 30, 10)] == [10, 20, 30, 10]


def test_a_branch_leaves_nothing_to_another() -> None:
    process = CleanProcess(job_of(Branching))
    modes = ["a", "b", "a", "b", "c"]
    assert [trained(process, {"mode": mode}) for mode in modes] == [3, 6, 3, 6, 3]


def test_data_that_are_the_same_for_all_are_kept() -> None:
    process = CleanProcess(job_of(Loaded))
    classes = []
    for size in (1.0, 2.0, 3.0, 4.0):
        classes.append(process.prepare({"size": size}, 0))
        TrainerRun.start(classes[-1], {"size": size}, config={}, seed=0)
        assert process.accepts_build()
    assert classes[0] is not classes[1], "whether the size decides is not known yet"
    assert classes[1] is classes[2] is classes[3]


def test_a_trial_alone_gets_code_of_its_own() -> None:
    process = CleanProcess(job_of(Loaded))
    made = [process.prepare({"size": 1.0}, 0)]
    TrainerRun.start(made[0], {"size": 1.0}, config={}, seed=0)
    assert process.accepts_build()
    made.append(process.prepare({"size": 1.0}, 0))
    made.append(process.prepare({"size": 1.0}, 0, is_alone=True))
    assert made[0] is made[1] is not made[2]


def test_what_is_named_harmless_is_kept() -> None:
    named = type("Named", (Sized,), {"harmless_differences": ("global ROWS",)})
    process = CleanProcess(job_of(named))
    assert [trained(process, {"size": size}) for size in (10, 20)] == [10, 10]


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the settings of this process back after a test, in which it counts as new."""
    monkeypatch.setattr(clean_process, "_STARTS", [])
    environment, folder, context = dict(os.environ), os.getcwd(), getcontext().prec
    errors = np.geterr()
    yield
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    np.seterr(**errors)
    getcontext().prec = context


@pytest.mark.usefixtures("restored")
def test_settings_and_generators_are_set_back() -> None:
    process = CleanProcess(job_of(Toy, is_own=True))
    process.prepare({}, 7)
    before = random.random(), np.random.rand(), os.getcwd(), getcontext().prec, np.geterr()
    os.environ["TOY"] = "changed"
    os.chdir("/")
    getcontext().prec = 3
    np.seterr(all="ignore")
    process.prepare({}, 7)
    after = random.random(), np.random.rand(), os.getcwd(), getcontext().prec, np.geterr()
    assert after == before
    assert "TOY" not in os.environ


@pytest.mark.usefixtures("restored")
def test_what_a_trial_puts_into_packages_is_taken_out() -> None:
    process = CleanProcess(job_of(Patching, is_own=True))
    modes = ["a", "b", "a", "b", "a"]
    assert [trained(process, {"mode": mode}) for mode in modes] == [6, 45, 6, 45, 6]
    other = CleanProcess(job_of(Counts, is_own=True))
    trained(process, {"mode": "b"})
    other.prepare({}, 7)
    assert trained(CleanProcess(job_of(Patching)), {"mode": "a"}) == 6, "another study's trial too"


@pytest.mark.usefixtures("restored")
def test_settings_of_the_users_own_process_stay() -> None:
    process = CleanProcess(job_of(Toy))
    os.environ["TOY"] = "changed"
    process.prepare({}, 7)
    assert os.environ["TOY"] == "changed"
