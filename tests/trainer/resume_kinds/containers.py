"""Containers and numbers of the standard library and of NumPy, which a late step changes."""

from __future__ import annotations

import array
import ctypes
import heapq
import itertools
import queue
from collections import ChainMap, OrderedDict, deque
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from tests.trainer.resume_kinds.kind import named
from tests.trainer.resume_kinds.smallest import Slope


class Late(Slope):
    """A part that late steps change through `moved`"""

    def push(self) -> float:
        return self.moved() if self.is_late else 0.0

    def moved(self) -> float:
        raise NotImplementedError


class Bytes(Late):
    """A `bytearray`"""

    def begin(self) -> None:
        self.counts = bytearray(2)

    def moved(self) -> float:
        self.counts[0] += 1
        return self.counts[0] / 50


class Array(Late):
    """An `array` of the standard library"""

    def begin(self) -> None:
        self.counts = array.array("d", [0.0])

    def moved(self) -> float:
        self.counts[0] += 0.02
        return self.counts[0]


class DecimalNumber(Late):
    """A `Decimal`"""

    def begin(self) -> None:
        self.total = Decimal("0")

    def moved(self) -> float:
        self.total += Decimal("0.02")
        return float(self.total)


class FractionNumber(Late):
    """A `Fraction`"""

    def begin(self) -> None:
        self.total = Fraction(0)

    def moved(self) -> float:
        self.total += Fraction(1, 50)
        return float(self.total)


class SimulatedTime(Late):
    """A `datetime` of a simulation"""

    def begin(self) -> None:
        self.clock = datetime(2024, 1, 1)

    def moved(self) -> float:
        self.clock += timedelta(hours=1)
        return self.clock.hour / 24


class WaitingQueue(Late):
    """A `Queue` that late steps fill"""

    def begin(self) -> None:
        self.waiting: queue.Queue[float] = queue.Queue()

    def moved(self) -> float:
        self.waiting.put(self.weight)
        return self.waiting.get() if self.waiting.qsize() > 5 else 0.0


class RecentDeque(Late):
    """A `deque`"""

    def begin(self) -> None:
        self.recent: deque[float] = deque(maxlen=6)

    def moved(self) -> float:
        self.recent.append(self.weight)
        return sum(self.recent) / 6


class SpawnedSeeds(Late):
    """`SeedSequence.spawn`: children are counted in the sequence"""

    def begin(self) -> None:
        self.seeds = np.random.SeedSequence(self.seed)

    def moved(self) -> float:
        (child,) = self.seeds.spawn(1)
        return float(np.random.default_rng(child).random())


class SpawnedGenerator(Late):
    """`Generator.spawn`: nothing is drawn from the generator itself"""

    def begin(self) -> None:
        self.noise = np.random.default_rng(self.seed)

    def moved(self) -> float:
        return float(self.noise.spawn(1)[0].random())


class LogTable(Late):
    """A `DataFrame` with a row for each late step"""

    def begin(self) -> None:
        self.table = pd.DataFrame({"loss": [0.0] * 4})

    def moved(self) -> float:
        self.table.loc[self.steps % 4, "loss"] = self.weight
        return float(self.table["loss"].sum())


class LogSeries(Late):
    """A `Series` of pandas"""

    def begin(self) -> None:
        self.column = pd.Series([0.0, 0.0])

    def moved(self) -> float:
        self.column.iloc[0] += 0.02
        return float(self.column.iloc[0])


class SparseMatrix(Late):
    """A sparse matrix of SciPy, whose numbers late steps change"""

    def begin(self) -> None:
        self.matrix = sparse.csr_matrix(np.eye(3))

    def moved(self) -> float:
        self.matrix.data *= 1.01
        return float(self.matrix.sum()) / 10


class PriorityHeap(Late):
    """A heap in a list"""

    def begin(self) -> None:
        self.heap = [(0.5, 0)]

    def moved(self) -> float:
        heapq.heappush(self.heap, (self.weight, self.steps))
        return self.heap[0][0]


class CycleIterator(Late):
    """An `itertools.cycle`"""

    def begin(self) -> None:
        self.turns = itertools.cycle((0.0, 0.2, 0.4, 0.1, 0.3))

    def moved(self) -> float:
        return next(self.turns)


class Namespace(Late):
    """A `SimpleNamespace`"""

    def begin(self) -> None:
        self.settings = SimpleNamespace(scale=0.1)

    def moved(self) -> float:
        self.settings.scale *= 1.02
        return float(self.settings.scale)


class Chain(Late):
    """A `ChainMap` over two dicts"""

    def begin(self) -> None:
        self.settings = ChainMap({}, {"scale": 0.1})

    def moved(self) -> float:
        self.settings["scale"] *= 1.02
        return self.settings["scale"]


class LeastRecent(Late):
    """A cache by an `OrderedDict`, whose order decides"""

    def begin(self) -> None:
        self.recent = OrderedDict((key, key / 10) for key in range(5))

    def moved(self) -> float:
        self.recent.move_to_end(self.steps * self.steps % 5)
        return next(iter(self.recent.values()))


class CNumber(Late):
    """A number of `ctypes`"""

    def begin(self) -> None:
        self.cell = ctypes.c_double(0.0)

    def moved(self) -> float:
        self.cell.value += 0.02
        return self.cell.value


class View(Late):
    """A `memoryview` of bytes that are held nowhere else"""

    def begin(self) -> None:
        self.view = memoryview(bytearray(1))

    def moved(self) -> float:
        self.view[0] += 1
        return self.view[0] / 50


class Structured(Late):
    """A structured array of NumPy"""

    def begin(self) -> None:
        self.record = np.zeros(1, dtype=[("count", "i8"), ("mean", "f8")])

    def moved(self) -> float:
        self.record["count"] += 1
        return float(self.record["count"][0]) / 50


class ObjectArray(Late):
    """An array of Python objects"""

    def begin(self) -> None:
        self.objects = np.array([0.0, None, "text"], dtype=object)

    def moved(self) -> float:
        self.objects[0] += 0.02
        return float(self.objects[0])


class FlagSet(Late):
    """A set of numbers that late steps fill"""

    def begin(self) -> None:
        self.flags: set[int] = set()

    def moved(self) -> float:
        self.flags.add(self.steps * self.steps % 53)
        return len(self.flags) / 30


class Tree:
    """A tree of one's own, deeper than ten levels."""

    def __init__(self) -> None:
        self.value, self.child = 0.0, None

    @classmethod
    def of_depth(cls, depth: int) -> Any:
        top = node = cls()
        for _ in range(depth):
            node.child = cls()  # type: ignore[assignment]
            node = node.child  # type: ignore[assignment]
        return top, node


class DeepTree(Late):
    """A number in the leaf of a tree with 12 levels"""

    def begin(self) -> None:
        self.tree, _ = Tree.of_depth(12)

    def moved(self) -> float:
        node = self.tree
        while node.child is not None:
            node = node.child
        node.value += 0.02
        return float(node.value)


class CachedBaseline(Late):
    """The contents of an `lru_cache`: the first weight of each ten steps"""

    @lru_cache  # noqa: B019 - as people write it
    def baseline(self, decade: int) -> float:
        return self.weight

    def moved(self) -> float:
        return self.weight - self.baseline(self.steps // 10)


KINDS = (
    named(Bytes, "counts"),
    named(Array, "counts"),
    named(DecimalNumber, "total"),
    named(FractionNumber, "total"),
    named(SimulatedTime, "clock"),
    named(WaitingQueue, "waiting"),
    named(RecentDeque, "recent"),
    named(SpawnedSeeds, "seeds"),
    named(SpawnedGenerator, "noise"),
    named(LogTable, "table"),
    named(LogSeries, "column"),
    named(SparseMatrix, "matrix"),
    named(PriorityHeap, "heap"),
    named(CycleIterator, "turns"),
    named(Namespace, "settings"),
    named(Chain, "settings"),
    named(LeastRecent, "recent"),
    named(CNumber, "cell"),
    named(View, "view"),
    named(Structured, "record"),
    named(ObjectArray, "objects"),
    named(FlagSet, "flags"),
    named(DeepTree, "tree"),
    named(CachedBaseline, "baseline"),
)
