"""Tests of proofs: the parts that a trainer holds beside its state, and their comparison."""

from __future__ import annotations

import array
import datetime
import functools
import itertools
import logging
import os
import queue
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.errors import ResumeError, TrainerError
from dasktune.storage.codec import decode, encode
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.trainer.proof import arrays
from dasktune.trainer.proof.proof import packed, unpacked
from dasktune.trainer.proof.remedies import Proving
from tests.forgetful import Amount, Tally


class Holding(dt.Trainer):
    """Holds a part beside its state; `change` changes it in each step."""

    make: Callable[[], Any] = int
    change: Callable[[Any], Any] = staticmethod(lambda part: part)

    def build(self, hp: Mapping[str, Any]) -> None:
        self.x = 0.0
        self.part = type(self).make()

    def train(self) -> None:
        self.x += 1
        changed = type(self).change(self.part)
        if changed is not None and changed is not False:
            self.part = changed

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x + len(str(self.part))}

    def state_dict(self) -> dict[str, Any]:
        return {"x": self.x}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.x = state["x"]


def trained(trainer_class: type, steps: int = 2) -> TrainerRun:
    run = TrainerRun.start(trainer_class, {}, config={}, seed=0, proving=Proving())
    for _ in range(steps):
        run.advance({})
    return run


def resumed(trainer_class: type) -> TrainerRun:
    """Train, save and load in a new trainer, which compares."""
    return resumed_from(trained(trainer_class))


def resumed_from(run: TrainerRun) -> TrainerRun:
    """Save, and load in a new trainer, which compares."""
    state = run.state()
    snapshot, proof = encode(state), unpacked(packed(run.proof(state)))
    return TrainerRun.resume(
        type(run.trainer),
        step=run.step,
        first_values={},
        last_values={},
        state=decode(snapshot.document, snapshot.data),
        config={},
        seed=0,
        proving=Proving(proof=proof),
    )


def holding(make: Callable[[], Any], change: Callable[[Any], Any]) -> type:
    members = {"make": staticmethod(make), "change": staticmethod(change)}
    return type("Made", (Holding,), members)


def counter() -> Callable[[], int]:
    n = 0

    def following() -> int:
        nonlocal n
        n += 1
        return n

    return following


def generator() -> Iterator[int]:
    yield 1
    yield 2
    yield 3


class Box:
    def __init__(self) -> None:
        self.n = 0

    def add(self) -> None:
        self.n += 1


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def add(self) -> None:
        self.n += 1


def dropout() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.1))


def hooked() -> torch.nn.Module:
    module, count = torch.nn.Linear(1, 1), [0]
    module.register_forward_hook(lambda *_: count.append(0))
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    return module


def set_p(module: torch.nn.Sequential) -> None:
    module[1].p += 0.1  # type: ignore[operator]


def seeded(module: torch.nn.Module) -> torch.nn.Module:
    for parameter in module.parameters():
        torch.nn.init.ones_(parameter)
    return module


class SlottedGenerator:
    """A random generator in a slot."""

    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)


def sampler() -> Any:
    made: Any = torch.utils.data.SequentialSampler([1, 2])
    made.epoch = 0
    return made


FORGOTTEN: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "own number": (lambda: Tally(0), lambda n: n + 1),
    "list of own numbers": (lambda: [Amount(0)], lambda part: part.append(Amount(1))),
    "closure": (counter, lambda following: following() is None),
    "partial": (
        lambda: functools.partial(list.append, []),
        lambda append: append(1),
    ),
    "method": (lambda: Slotted().add, lambda add: add()),
    "slots": (Slotted, lambda box: box.add()),
    "generator": (generator, lambda numbers: next(numbers) is None),
    "zip": (lambda: zip([1, 2, 3], "abc", strict=True), lambda pairs: next(pairs) is None),
    "cycle": (lambda: itertools.cycle([1, 2, 3]), lambda numbers: next(numbers) is None),
    "decimal": (lambda: Decimal(0), lambda part: part + 1),
    "date": (lambda: datetime.date(2020, 1, 1), lambda day: day + datetime.timedelta(1)),
    "queue": (queue.Queue, lambda part: part.put(1)),
    "objects": (lambda: np.array([1, "a"], object), lambda part: part.__setitem__(0, 5)),
    "seeds": (lambda: np.random.SeedSequence(1), lambda part: part.spawn(1) is None),
    "slotted rng": (SlottedGenerator, lambda part: part.rng.random() is None),
    "large array": (lambda: np.zeros(20_000), lambda part: part + 1),
    "library's number": (sampler, lambda part: setattr(part, "epoch", part.epoch + 1)),
    "hook": (hooked, lambda module: module(torch.zeros(1)) is None),
    "environment": (lambda: None, lambda _: os.environ.__setitem__("TOY_STEP", "1")),
}

PLAIN: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "int": (lambda: 0, lambda n: n + 1),
    "iterator": (lambda: iter([1, 2, 3]), lambda numbers: next(numbers) is None),
    "method": (lambda: Box().add, lambda add: add()),
    "bytearray": (lambda: bytearray(3), lambda part: part.append(1)),
    "array": (lambda: array.array("d", [0.0]), lambda part: part.append(1.0)),
    "deque": (deque, lambda part: part.append(1)),
    "counter": (Counter, lambda part: part.update("a")),
    "set": (lambda: {"a"}, lambda part: part.add("b")),
    "spawned": (lambda: np.random.default_rng(1), lambda part: part.spawn(1) is None),
    "rng": (lambda: np.random.default_rng(1), lambda part: part.random() is None),
    "module's number": (lambda: seeded(dropout()), set_p),
    "tensor": (lambda: torch.zeros(3), lambda part: part + 1),
}
"""Parts whose values a proof keeps."""

READ: dict[str, Callable[[Any], Any]] = {
    "iterator": list,
    "method": lambda add: add.__self__.n,
    "spawned": lambda part: part.spawn(1)[0].random(),
    "rng": lambda part: part.random(),
    "module's number": lambda module: module[1].p,
    "tensor": torch.Tensor.tolist,
}
"""Functions that return the value of a part which has no usual equality."""


@pytest.fixture(autouse=True)
def without_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOY_STEP", raising=False)


@pytest.mark.parametrize("kind", [name for name in FORGOTTEN if name != "environment"])
def test_a_forgotten_part_is_named(kind: str) -> None:
    with pytest.raises(ResumeError) as raised:
        resumed(holding(*FORGOTTEN[kind]))
    assert raised.value.paths[0].startswith(("trainer.part", "variable ", "len(trainer"))


@pytest.mark.parametrize("kind", PLAIN)
def test_a_forgotten_plain_part_is_set(kind: str) -> None:
    run = trained(holding(*PLAIN[kind]))
    read = READ.get(kind, lambda part: part)
    part = resumed_from(run).trainer.part
    assert type(part) is type(run.trainer.part)
    assert read(part) == read(run.trainer.part)


def test_a_variable_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    run = TrainerRun.start(
        holding(*FORGOTTEN["environment"]), {}, config={}, seed=0, proving=Proving()
    )
    run.advance({})
    assert run.proof(run.state())["os.environ['TOY_STEP']"] == "~str '1'"


@pytest.mark.parametrize("kind", [*FORGOTTEN, *PLAIN])
def test_a_part_that_does_not_change_is_no_difference(kind: str) -> None:
    make, _ = {**FORGOTTEN, **PLAIN}[kind]
    assert resumed(holding(make, lambda part: None)).step == 2


OF_THE_PROCESS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "time": (time.time, lambda _: time.time()),
    "clock": (time.perf_counter, lambda _: time.perf_counter()),
    "nanoseconds": (time.time_ns, lambda _: time.time_ns()),
    "now": (datetime.datetime.now, lambda _: datetime.datetime.now()),
    "pid": (os.getpid, lambda _: None),
    "logger": (lambda: logging.getLogger("toy"), lambda _: None),
    "lock": (threading.Lock, lambda _: None),
    "file": (lambda: open(os.devnull), lambda file: file.read(1) is None),  # noqa: SIM115
    "name": (lambda: f"/tmp/{time.time_ns()}", lambda _: None),
}


@pytest.mark.parametrize("kind", OF_THE_PROCESS)
@pytest.mark.filterwarnings("ignore:unclosed file")
def test_a_part_of_the_process_is_no_difference(kind: str) -> None:
    assert resumed(holding(*OF_THE_PROCESS[kind])).step == 2


def test_a_build_that_draws_without_a_seed_is_named() -> None:
    def draw() -> float:
        return Amount(np.random.default_rng().random())

    with pytest.raises(ResumeError, match="each build gives another one"):
        resumed(holding(draw, lambda _: None))


def test_a_number_that_build_draws_without_a_seed_is_set() -> None:
    def draw() -> float:
        return float(np.random.default_rng().random())

    run = trained(holding(draw, lambda _: None))
    assert resumed_from(run).trainer.part == run.trainer.part


class Saved(Holding):
    """Saves a large array; `loads` says whether it restores it."""

    loads = True

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        self.weights = np.zeros(1000)

    def train(self) -> None:
        self.weights = self.weights + 1

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.loads:
            self.weights = state["weights"]


def test_an_array_in_the_state_is_written_by_its_place() -> None:
    run = TrainerRun.start(Saved, {}, config={}, seed=0, proving=Proving())
    run.advance({})
    assert run.proof(run.state())["trainer.weights"] == "@0"
    assert resumed(Saved).step == 2


def test_an_array_that_is_not_loaded_from_the_state_is_named() -> None:
    with pytest.raises(ResumeError, match="is not loaded from the state, which has it: 1000 of"):
        resumed(type("Forgets", (Saved,), {"loads": False}))


def test_modules_that_were_made_one_after_the_other_are_all_seen() -> None:
    class Three(Holding):
        def build(self, hp: Mapping[str, Any]) -> None:
            super().build(hp)
            self.model, self.ema, self.third = (torch.nn.Linear(2, 2) for _ in range(3))

    run = TrainerRun.start(Three, {}, config={}, seed=0, proving=Proving())
    paths = run.proof({}).keys()
    assert {f"trainer.{name}['weight']" for name in ("model", "ema", "third")} <= paths


def test_a_large_array_that_stays_is_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "LARGE", 1000)
    read: list[int] = []
    digest_of = arrays.digest_of
    monkeypatch.setattr(
        arrays, "digest_of", lambda content: read.append(len(content)) or digest_of(content)
    )
    values = np.arange(1000.0)
    first = arrays.text_of_any(values)
    assert sum(read) >= values.nbytes
    read.clear()
    assert arrays.text_of_any(values) == first
    assert sum(read) == 1000
    values += 1
    assert arrays.text_of_any(values) != first


def test_a_large_array_that_a_state_may_copy_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "LARGE", 1000)
    values = np.arange(1000.0)
    first = arrays.text_of_any(values)
    values[0] = 5  # the chunk of the next look is another one
    assert arrays.text_of_any(values) == first
    assert arrays.text_of_large(values, is_copied=True) != first


@given(st.dictionaries(st.text(), st.text()))
def test_a_packed_proof_is_unpacked_as_it_was(texts: dict[str, str]) -> None:
    assert unpacked(packed(texts)) == texts


@pytest.mark.parametrize("text", ["", "x", "c-rk*000", packed({"a": "b"})[:-3]])
def test_a_proof_that_cannot_be_read_raises(text: str) -> None:
    with pytest.raises(ValueError, match="the proof"):
        unpacked(text)


def test_a_proof_imports_no_module_that_the_code_does_not() -> None:
    # Whoever can write to a store must not choose what workers import.
    run = trained(Holding)
    state = run.state()
    proof = {**run.proof(state), "module antigravity": "~str 'imported'"}
    with pytest.raises(ResumeError, match="module antigravity: is missing"):
        TrainerRun.resume(
            Holding,
            step=run.step,
            first_values={},
            last_values={},
            state=state,
            config={},
            seed=0,
            proving=Proving(proof=proof),
        )
    assert "antigravity" not in sys.modules


class Rounding(Holding):
    """Rounds itself where its state is taken."""

    def state_dict(self) -> dict[str, Any]:
        self.x = round(self.x * 1.01, 3)
        return {"x": self.x}


class Counting(Holding):
    """Counts its states for a log."""

    saves = 0

    def state_dict(self) -> dict[str, Any]:
        self.saves += 1
        return {"x": self.x}


def test_a_state_that_changes_its_trainer_is_refused_by_name() -> None:
    run = trained(Rounding)
    with pytest.raises(TrainerError, match=r"state_dict changes trainer\.x, which is 2\.02 after"):
        run.state()
    assert trained(Counting).state() == {"x": 2.0}, "only state_dict reads its count"


class LateLogger(Holding):
    """Gets a logger in its steps, in each process for the first time."""

    def build(self, hp: Mapping[str, Any]) -> None:
        super().build(hp)
        logging.root.manager.loggerDict.pop("late logger", None)

    def train(self) -> None:
        super().train()
        logging.getLogger("late logger").debug("one step more")


class LateLevel(LateLogger):
    """Sets the level of its logger, too."""

    def train(self) -> None:
        super().train()
        logging.getLogger("late logger").setLevel(logging.ERROR)


def test_a_logger_that_the_code_gets_late_is_no_difference() -> None:
    assert resumed(LateLogger).evaluate() == {"loss": 3.0}
    with pytest.raises(ResumeError, match="level of the logger late logger"):
        resumed(LateLevel)
