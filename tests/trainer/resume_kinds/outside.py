"""State outside of the trainer: variables of modules and classes, the process, and files."""

from __future__ import annotations

import contextvars
import decimal
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.trainer.resume_kinds import shared
from tests.trainer.resume_kinds.kind import named
from tests.trainer.resume_kinds.smallest import LATE, Net, Slope

COUNT = {"n": 0}
FACTORS = np.ones(2)
FLAG = False


class LateModuleCounter(Slope):
    """A module's counter that moves from the 12th step on"""

    def push(self) -> float:
        COUNT["n"] += self.is_late
        return COUNT["n"] / 50


class LateModuleArray(Slope):
    """A module's array that late steps change in place"""

    def push(self) -> float:
        FACTORS[0] *= 1.01 if self.is_late else 1.0
        return float(FACTORS[0])


class LateModuleFlag(Slope):
    """A module's flag that a late step sets with `global`, by the mode of the trial"""

    def push(self) -> float:
        global FLAG
        if self.steps == LATE:
            FLAG = self.mode == "b"
        return 0.3 if FLAG else 0.0


class LateOtherModule(Slope):
    """A counter in another module, `shared.count`"""

    def push(self) -> float:
        shared.count += self.is_late
        return shared.count / 50


class LateOtherModuleObject(Slope):
    """An object of another module that a function of this module changes"""

    def push(self) -> float:
        return shared.noted(self.weight) if self.is_late else 0.0


class LateClassNumber(Slope):
    """A number of the class that late steps change by `type(self)`"""

    scale = 1.0

    def push(self) -> float:
        if self.is_late:
            type(self).scale *= 1.01
        return self.scale * self.weight


class Registry:
    """A class whose attribute is a registry."""

    losses: list[float] = []  # noqa: RUF012


class LateRegistry(Slope):
    """A list of another class that late steps fill"""

    def push(self) -> float:
        if self.is_late:
            Registry.losses.append(self.weight)
        return sum(Registry.losses[-4:]) / 4


class LateDefault(Slope):
    """A dict in a default argument that late steps fill"""

    def push(self, seen: dict[str, int] = {}) -> float:  # noqa: B006
        if self.is_late:
            seen["late"] = seen.get("late", 0) + 1
        return seen.get("late", 0) / 50


def counted() -> float:
    counted.calls += 1  # type: ignore[attr-defined]
    return counted.calls / 50  # type: ignore[attr-defined,no-any-return]


counted.calls = 0  # type: ignore[attr-defined]


class LateFunctionAttribute(Slope):
    """A number in an attribute of a function"""

    def push(self) -> float:
        return counted() if self.is_late else 0.0


def remembering() -> Callable[[float], float]:
    means: dict[str, float] = {}

    def remember(value: float) -> float:
        means["all"] = 0.9 * means.get("all", 0.0) + 0.1 * value
        return means["all"]

    return remember


remember = remembering()


class LateModuleClosure(Slope):
    """A dict in the closure of a function of the module"""

    def push(self) -> float:
        return remember(self.weight) if self.is_late else 0.0


def counting_calls(function: Callable[[Any], float]) -> Callable[[Any], float]:
    calls = 0

    def wrapper(trainer: Any) -> float:
        nonlocal calls
        calls += trainer.is_late
        return function(trainer) + calls / 50

    return wrapper


class LateDecorator(Slope):
    """A method with a decorator that counts its calls"""

    @counting_calls
    def push(self) -> float:
        return 0.0


class Environment(Slope):
    """A number in `os.environ`"""

    def push(self) -> float:
        if not self.is_late:
            return 0.0
        count = int(os.environ.get("RESUME_KINDS_COUNT", "0")) + 1
        os.environ["RESUME_KINDS_COUNT"] = str(count)
        return count / 50


class AppendedFile(Slope):
    """A file that late steps append to, and read"""

    def begin(self) -> None:
        self.notes = Path(tempfile.gettempdir(), "notes.txt")

    def push(self) -> float:
        if not self.is_late:
            return 0.0
        with self.notes.open("a") as file:
            file.write(".")
        return len(self.notes.read_text()) / 50


class MappedFile(Slope):
    """An array in a file that late steps change through `memmap`"""

    def begin(self) -> None:
        place = Path(tempfile.gettempdir(), f"weights-{os.getpid()}.bin")
        self.weights = np.memmap(place, dtype="f8", mode="w+", shape=(2,))

    def push(self) -> float:
        self.weights[0] += 0.02 if self.is_late else 0.0
        return float(self.weights[0])


class Database(Slope):
    """A database of sqlite in memory"""

    def begin(self) -> None:
        self.database = sqlite3.connect(":memory:", check_same_thread=False)
        self.database.execute("CREATE TABLE losses (loss REAL)")

    def push(self) -> float:
        if not self.is_late:
            return 0.0
        self.database.execute("INSERT INTO losses VALUES (?)", (self.weight,))
        ((mean,),) = self.database.execute("SELECT avg(loss) FROM losses")
        return float(mean)


class ThreadLocal(Slope):
    """A number in a `threading.local`"""

    def begin(self) -> None:
        self.place = threading.local()

    def push(self) -> float:
        if self.is_late:
            self.place.total = getattr(self.place, "total", 0.0) + 0.02
        return float(getattr(self.place, "total", 0.0))


class ContextNumber(Slope):
    """A number in a context variable of an object"""

    def begin(self) -> None:
        self.level: contextvars.ContextVar[float] = contextvars.ContextVar("level")

    def push(self) -> float:
        if self.is_late:
            self.level.set(self.level.get(0.0) + 0.02)
        return self.level.get(0.0)


class DecimalPrecision(Slope):
    """The precision of `decimal`, which a late step lowers, by the mode of the trial"""

    def push(self) -> float:
        if self.steps == LATE:
            decimal.getcontext().prec = 3 if self.mode == "b" else 5
        return float(decimal.Decimal(self.weight) / decimal.Decimal(3))


class DefaultType(Net):
    """The default type of torch, which a late step changes"""

    def loss(self) -> torch.Tensor:
        if self.steps == LATE:
            torch.set_default_dtype(torch.float64)
        scale = torch.ones(1).to(torch.get_default_dtype()) / 3
        return super().loss() * scale.float() * (1 + scale.element_size() / 8)


class PatchedClass(Slope):
    """A method of a class that a late step replaces"""

    def push(self) -> float:
        if self.steps == LATE:
            pull = 0.3 if self.mode == "b" else -0.3
            Counted.pull = lambda counted: pull  # type: ignore[method-assign,assignment]
        return Counted().pull()


class Counted:
    """A class with a method."""

    def pull(self) -> float:
        return 0.0


KINDS = (
    named(LateModuleCounter, "COUNT"),
    named(LateModuleArray, "FACTORS"),
    named(LateModuleFlag, "FLAG"),
    named(LateOtherModule, "count"),
    named(LateOtherModuleObject, "ledger"),
    named(LateClassNumber, "scale"),
    named(LateRegistry, "losses"),
    named(LateDefault, "seen"),
    named(LateFunctionAttribute, "calls"),
    named(LateModuleClosure, "remember"),
    named(LateDecorator, "calls"),
    named(Environment, "environ"),
    named(AppendedFile, "notes"),
    named(MappedFile, "weights"),
    named(Database, "database"),
    named(ThreadLocal, "place"),
    named(ContextNumber, "level"),
    named(DecimalPrecision, "prec"),
    named(DefaultType, "default"),
    named(PatchedClass, "Counted"),
)
