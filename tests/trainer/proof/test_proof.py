"""Tests of proofs: the parts that a trainer holds beside its state, and their comparison."""

from __future__ import annotations

import array
import datetime
import functools
import itertools
import logging
import os
import queue
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
from dasktune.errors import ResumeError
from dasktune.storage.codec import decode, encode
from dasktune.trainer.lifecycle import TrainerRun
from dasktune.trainer.proof import proof as proofs
from dasktune.trainer.proof.proof import packed, unpacked
from dasktune.trainer.proof.remedies import Proving


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


def resumed(trainer_class: type, steps: int = 2) -> TrainerRun:
    """Train, save and load in a new trainer, which compares."""
    run = TrainerRun.start(trainer_class, {}, config={}, seed=0, proving=Proving())
    for _ in range(steps):
        run.advance({})
    state = run.state()
    snapshot, proof = encode(state), unpacked(packed(run.proof(state)))
    return TrainerRun.resume(
        trainer_class,
        step=steps,
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


FORGOTTEN: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "int": (lambda: 0, lambda n: n + 1),
    "closure": (counter, lambda following: following() is None),
    "partial": (
        lambda: functools.partial(list.append, []),
        lambda append: append(1),
    ),
    "method": (lambda: Box().add, lambda add: add()),
    "slots": (Slotted, lambda box: box.add()),
    "generator": (generator, lambda numbers: next(numbers) is None),
    "iterator": (lambda: iter([1, 2, 3]), lambda numbers: next(numbers) is None),
    "cycle": (lambda: itertools.cycle([1, 2, 3]), lambda numbers: next(numbers) is None),
    "bytearray": (lambda: bytearray(3), lambda part: part.append(1)),
    "array": (lambda: array.array("d", [0.0]), lambda part: part.append(1.0)),
    "decimal": (lambda: Decimal(0), lambda part: part + 1),
    "date": (lambda: datetime.date(2020, 1, 1), lambda day: day + datetime.timedelta(1)),
    "queue": (queue.Queue, lambda part: part.put(1)),
    "deque": (deque, lambda part: part.append(1)),
    "counter": (Counter, lambda part: part.update("a")),
    "set": (lambda: {"a"}, lambda part: part.add("b")),
    "objects": (lambda: np.array([1, "a"], object), lambda part: part.__setitem__(0, 5)),
    "seeds": (lambda: np.random.SeedSequence(1), lambda part: part.spawn(1) is None),
    "spawned": (lambda: np.random.default_rng(1), lambda part: part.spawn(1) is None),
    "rng": (lambda: np.random.default_rng(1), lambda part: part.random() is None),
    "module's number": (lambda: seeded(dropout()), set_p),
    "hook": (hooked, lambda module: module(torch.zeros(1)) is None),
    "tensor": (lambda: torch.zeros(3), lambda part: part + 1),
    "environment": (lambda: None, lambda _: os.environ.__setitem__("TOY_STEP", "1")),
}


@pytest.fixture(autouse=True)
def without_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOY_STEP", raising=False)


@pytest.mark.parametrize("kind", [name for name in FORGOTTEN if name != "environment"])
def test_a_forgotten_part_is_named(kind: str) -> None:
    with pytest.raises(ResumeError) as raised:
        resumed(holding(*FORGOTTEN[kind]))
    assert raised.value.paths[0].startswith(("trainer.part", "variable ", "len(trainer"))


def test_a_variable_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    run = TrainerRun.start(
        holding(*FORGOTTEN["environment"]), {}, config={}, seed=0, proving=Proving()
    )
    run.advance({})
    assert run.proof(run.state())["os.environ['TOY_STEP']"] == "~str '1'"


@pytest.mark.parametrize("kind", FORGOTTEN)
def test_a_part_that_does_not_change_is_no_difference(kind: str) -> None:
    make, _ = FORGOTTEN[kind]
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
        return float(np.random.default_rng().random())

    with pytest.raises(ResumeError, match="each build gives another one"):
        resumed(holding(draw, lambda _: None))


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
    monkeypatch.setattr(proofs, "_LARGE", 1000)
    read: list[int] = []
    digest_of = proofs.digest_of
    monkeypatch.setattr(
        proofs, "digest_of", lambda content: read.append(len(content)) or digest_of(content)
    )
    values = np.arange(1000.0)
    first = proofs.text_of_any(values)
    assert sum(read) >= values.nbytes
    read.clear()
    assert proofs.text_of_any(values) == first
    assert sum(read) == 1000
    values += 1
    assert proofs.text_of_any(values) != first


def test_a_large_array_that_a_state_may_copy_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "_LARGE", 1000)
    values = np.arange(1000.0)
    first = proofs.text_of_any(values)
    values[0] = 5  # the chunk of the next look is another one
    assert proofs.text_of_any(values) == first
    assert proofs.text_of_any(values, is_copied=True) != first


@given(st.dictionaries(st.text(), st.text()))
def test_a_packed_proof_is_unpacked_as_it_was(texts: dict[str, str]) -> None:
    assert unpacked(packed(texts)) == texts


@pytest.mark.parametrize("text", ["", "x", "c-rk*000", packed({"a": "b"})[:-3]])
def test_a_proof_that_cannot_be_read_raises(text: str) -> None:
    with pytest.raises(ValueError, match="the proof"):
        unpacked(text)
