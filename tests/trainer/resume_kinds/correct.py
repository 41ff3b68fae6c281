"""Correct trainers in which something differs after a resume that decides nothing."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import itertools
import logging
import os
import queue
import socket
import sys
import tempfile
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import sklearn
from scipy import sparse
from tqdm import tqdm

from tests.trainer.resume_kinds.kind import correct
from tests.trainer.resume_kinds.smallest import Slope, target

LOGGER = logging.getLogger("resume kinds")


class Timed(Slope):
    """Timers: the start, the seconds of the last step and their sum"""

    def begin(self) -> None:
        self.started, self.seconds, self.total = time.time(), 0.0, 0.0

    def train(self) -> None:
        begun = time.perf_counter()
        super().train()
        self.seconds = time.perf_counter() - begun
        self.total += self.seconds


class Stamped(Slope):
    """The time of the last step as a `datetime`"""

    def begin(self) -> None:
        self.last = datetime.now(UTC)

    def train(self) -> None:
        super().train()
        self.last = datetime.now(UTC)


class ProgressBar(Slope):
    """A progress bar of tqdm in an attribute"""

    def begin(self) -> None:
        self.bar = tqdm(total=100, file=open(os.devnull, "w"))  # noqa: SIM115

    def train(self) -> None:
        super().train()
        self.bar.update()


class Logging(Slope):
    """A logger in an attribute"""

    def begin(self) -> None:
        self.logger = logging.getLogger("resume kinds")

    def train(self) -> None:
        super().train()
        self.logger.debug("step %d", self.steps)


class LogFile(Slope):
    """An open log file that each step writes to"""

    def begin(self) -> None:
        self.log = tempfile.TemporaryFile("w")  # noqa: SIM115

    def train(self) -> None:
        super().train()
        self.log.write(f"{self.steps}: {self.weight}\n")


class ProcessNames(Slope):
    """The process, the host and a folder of this process in attributes"""

    def begin(self) -> None:
        self.pid, self.host = os.getpid(), socket.gethostname()
        self.folder = Path(tempfile.mkdtemp())
        self.name = f"run on {self.host}, process {self.pid}"


class ShownLoss(Slope):
    """The last losses, kept for a log line only"""

    def begin(self) -> None:
        self.last_loss, self.last_batch = 0.0, np.zeros(2)
        self.shown: deque[str] = deque(maxlen=3)

    def train(self) -> None:
        super().train()
        self.last_loss = self.weight**2
        self.last_batch = np.full(2, self.weight)
        self.shown.append(f"{self.steps}: {self.last_loss:.3f}")
        LOGGER.debug("%s", self.shown)


class Scratch(Slope):
    """A buffer that each step overwrites before it reads it"""

    def begin(self) -> None:
        self.buffer = np.empty(4)

    def push(self) -> float:
        self.buffer[:] = self.weight, target(self.steps), 0.1, 0.0
        np.multiply(self.buffer, 0.5, out=self.buffer)
        return float(self.buffer.sum())


class Rows:
    """A data set that keeps the samples that it has made."""

    def __init__(self) -> None:
        self.cache: dict[int, float] = {}

    def __getitem__(self, row: int) -> float:
        if row not in self.cache:
            self.cache[row] = float(np.sin(row))
        return self.cache[row]


class SampleCache(Slope):
    """A data set with a cache of samples in memory"""

    def begin(self) -> None:
        self.rows = Rows()

    def push(self) -> float:
        return self.rows[self.steps * 7 % 23]


TABLE: dict[str, np.ndarray[Any, Any]] = {}


def table() -> np.ndarray[Any, Any]:
    if "rows" not in TABLE:
        TABLE["rows"] = np.linspace(-1, 1, 11)
    return TABLE["rows"]


class ModuleCache(Slope):
    """A module's cache of a data set that no value decides"""

    def push(self) -> float:
        return float(table()[self.steps % 11])


class GrowingTable(Slope):
    """A table of positions that grows when a later step needs more, as rotary embeddings"""

    def begin(self) -> None:
        self.angles = np.cos(np.arange(4) / 7)

    def push(self) -> float:
        if self.steps >= len(self.angles):
            self.angles = np.cos(np.arange(2 * self.steps) / 7)
        return float(self.angles[self.steps])


class LazyProperty(Slope):
    """A `cached_property` of constants, read late"""

    @cached_property
    def kernel(self) -> np.ndarray[Any, Any]:
        return np.hanning(9)

    def push(self) -> float:
        return float(self.kernel[self.steps % 9]) if self.is_late else 0.0


@functools.cache
def angle(step: int) -> float:
    return float(np.sin(step / 9))


class CachedFunction(Slope):
    """An `lru_cache` of a pure function"""

    def push(self) -> float:
        return angle(self.steps)


class CachedMethod(Slope):
    """An `lru_cache` of a pure function in an attribute"""

    def begin(self) -> None:
        self.angle = lru_cache(maxsize=16)(abs)

    def push(self) -> float:
        return self.angle(self.steps % 13 - 6) / 13


class SetOfText(Slope):
    """Sets of texts, in the state and beside it"""

    def begin(self) -> None:
        self.words = {"red", "green", "blue", "yellow", "violet"}
        self.used: set[str] = set()

    def push(self) -> float:
        self.used.add(sorted(self.words)[self.steps % 5])
        return len(self.used) / 10

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "used": set(self.used)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.used = set(state["used"])


class Epochs(Slope):
    """An iterator that is made anew where it ends, at a step that the state knows"""

    def begin(self) -> None:
        self.rows: Iterator[float] = iter(())

    def push(self) -> float:
        if self.steps % 4 == 1:
            self.rows = iter((0.1, 0.2, 0.3, 0.4))
        try:
            return next(self.rows)
        except StopIteration:
            return (0.1, 0.2, 0.3, 0.4)[(self.steps - 1) % 4]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.rows = iter((0.1, 0.2, 0.3, 0.4)[self.steps % 4 :])


class IteratorInStep(Slope):
    """An iterator that each step makes and empties"""

    def begin(self) -> None:
        self.batches: Any = None

    def push(self) -> float:
        self.batches = iter([0.1, 0.2])
        return sum(self.batches)


class DrainedQueue(Slope):
    """A queue that each step fills and empties"""

    def begin(self) -> None:
        self.waiting: queue.Queue[float] = queue.Queue()

    def push(self) -> float:
        for row in range(3):
            self.waiting.put(np.sin(self.steps + row))
        return sum(self.waiting.get() for _ in range(3))


class ThreadPool(Slope):
    """A pool of threads that prepares the batches of a step"""

    def begin(self) -> None:
        self.pool = ThreadPoolExecutor(2)

    def push(self) -> float:
        return sum(self.pool.map(angle, range(self.steps, self.steps + 3)))


class PrefetchThread(Slope):
    """A thread with a lock and an event that is joined in each step"""

    def begin(self) -> None:
        self.lock, self.done = threading.Lock(), threading.Event()

    def push(self) -> float:
        made: list[float] = []

        def prefetch() -> None:
            with self.lock:
                made.append(angle(self.steps))
            self.done.set()

        self.done.clear()
        thread = threading.Thread(target=prefetch)
        thread.start()
        self.done.wait()
        thread.join()
        return made[0]


class ShapeCache(Slope):
    """A cache of functions by shape, as of a compiler"""

    def begin(self) -> None:
        self.compiled: dict[tuple[int, ...], Any] = {}

    def push(self) -> float:
        shape = (self.steps % 3 + 1,)
        if shape not in self.compiled:
            self.compiled[shape] = lambda rows: float(rows.mean())
        return float(self.compiled[shape](np.full(shape, 0.1 * shape[0])))


class Jitted:
    """A function with signatures that it has compiled and a count of hits, as of numba."""

    def __init__(self, function: Any) -> None:
        self.function, self.hits = function, Counter[str]()
        self.overloads: dict[str, str] = {}

    def __call__(self, value: Any) -> Any:
        signature = type(value).__name__
        self.overloads.setdefault(signature, f"compiled for {signature}")
        self.hits[signature] += 1
        return self.function(value)


doubled = Jitted(lambda value: 2 * value)


class JitCache(Slope):
    """A module's function with compiled signatures and counts of hits"""

    def push(self) -> float:
        return float(doubled(np.float64(0.1) if self.is_late else 0.1))


class Kernel(Enum):
    """The kernel of a model."""

    FLAT = 0.1
    STEEP = 0.3


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a model."""

    kernel: Kernel = Kernel.FLAT
    widths: tuple[int, ...] = (4, 8)
    names: frozenset[str] = frozenset({"a", "b"})


class ConfigObject(Slope):
    """Settings in a frozen dataclass with an enum"""

    def begin(self) -> None:
        self.settings = Settings(Kernel.STEEP if self.mode == "b" else Kernel.FLAT)

    def push(self) -> float:
        return self.settings.kernel.value


class MutableConfig(Slope):
    """Settings in a dataclass, a namespace and read-only mappings"""

    def begin(self) -> None:
        self.options = SimpleNamespace(scale=0.2, kind="flat")
        self.constants = MappingProxyType({"shift": 0.1})
        self.price = Decimal("0.05")

    def push(self) -> float:
        return float(self.options.scale + self.constants["shift"]) + float(self.price)


class TemporaryAttributes(Slope):
    """Attributes that a step makes and deletes"""

    def push(self) -> float:
        self.cached = np.full(3, self.weight)
        result = float(self.cached.mean()) / 10
        del self.cached
        return result


class SavedHistory(Slope):
    """A history list in the state"""

    def begin(self) -> None:
        self.history: list[float] = []

    def push(self) -> float:
        self.history.append(self.weight)
        return sum(self.history[-5:]) / 50

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "history": list(self.history)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.history = list(state["history"])


class SavedCounters(Slope):
    """Counters in the state, in a `Counter` and a `defaultdict`"""

    def begin(self) -> None:
        self.counts: Counter[str] = Counter()
        self.sums: defaultdict[str, float] = defaultdict(float)

    def push(self) -> float:
        self.counts["up" if self.weight > 0 else "down"] += 1
        self.sums["all"] += self.weight
        return self.counts["up"] / (self.steps + 1) + 0.01 * self.sums["all"]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "counts": dict(self.counts), "sums": dict(self.sums)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.counts = Counter(state["counts"])
        self.sums = defaultdict(float, state["sums"])


class SavedBest(Slope):
    """A plateau rule with all its numbers in the state"""

    def begin(self) -> None:
        self.best, self.bad, self.scale = float("inf"), 0, 1.0

    def push(self) -> float:
        loss = abs(self.weight)
        self.best, self.bad = (loss, 0) if loss < self.best else (self.best, self.bad + 1)
        if self.bad >= 8:
            self.scale, self.bad = 0.7 * self.scale, 0
        return self.scale * self.weight

    def state_dict(self) -> dict[str, Any]:
        own = {"best": self.best, "bad": self.bad, "scale": self.scale}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.best, self.bad, self.scale = state["best"], state["bad"], state["scale"]


class MappedData(Slope):
    """Read-only data in a file that is mapped into memory"""

    def begin(self) -> None:
        self.data = np.memmap(sys.executable, dtype="u1", mode="r", shape=(64,))

    def push(self) -> float:
        return float(self.data[self.steps % 64]) / 255


class SparseConstant(Slope):
    """A constant sparse matrix of SciPy"""

    def begin(self) -> None:
        self.matrix = sparse.csr_matrix(np.eye(3))

    def push(self) -> float:
        return float(self.matrix.dot(np.full(3, self.weight)).sum()) / 10


class TableOfData(Slope):
    """Data in a `DataFrame`, from which each step takes a row"""

    def begin(self) -> None:
        self.table = pd.DataFrame({"x": np.linspace(0, 1, 9), "name": list("abcdefghi")})

    def push(self) -> float:
        return float(self.table["x"].iloc[self.steps % 9])


class ReSeeded(Slope):
    """A generator that each step makes from its number"""

    def begin(self) -> None:
        self.noise = np.random.default_rng(self.seed)

    def push(self) -> float:
        self.noise = np.random.default_rng([self.seed, self.steps])
        return float(self.noise.random())


class DisplayCount(Slope):
    """A module's count of calls that is shown, and decides nothing"""

    def push(self) -> float:
        SHOWN["calls"] += 1
        LOGGER.debug("called %d times", SHOWN["calls"])
        return 0.0


SHOWN = {"calls": 0}


class WeakReferences(Slope):
    """Weak references, a context variable and the ids of objects"""

    def begin(self) -> None:
        self.rows = Rows()
        self.watched = weakref.WeakSet([self.rows])
        self.by_id = {id(self.rows): "rows"}
        self.level: contextvars.ContextVar[int] = contextvars.ContextVar("level", default=3)

    def push(self) -> float:
        return len(self.watched) * self.level.get() / 50


class Shape(NamedTuple):
    """Rows and columns."""

    rows: int
    columns: int


class NamedConstants(Slope):
    """Named tuples, ranges, slices and functions as constants"""

    def begin(self) -> None:
        self.shape, self.span, self.part = Shape(3, 4), range(3), slice(0, 2)
        self.shrink = functools.partial(np.multiply, 0.1)

    def push(self) -> float:
        return float(self.shrink(self.shape.rows + sum(self.span[self.part])))


class LibraryVersion(Slope):
    """Versions of libraries and the arguments of the process in a dict"""

    def begin(self) -> None:
        self.about = {"sklearn": sklearn.__version__, "argv": list(sys.argv), "cwd": os.getcwd()}


class RunNumber(Slope):
    """A number of each run by a module's `itertools.count`, for names of files"""

    def begin(self) -> None:
        self.name = f"run-{next(NUMBERS)}"


NUMBERS = itertools.count()


class PassingError(Slope):
    """The last exception and its traceback, kept for a log line"""

    def begin(self) -> None:
        self.last_error: Exception | None = None

    def push(self) -> float:
        try:
            return float(np.array([0.1, 0.2])[self.steps % 3])
        except IndexError as error:
            self.last_error = error
            return 0.0


class BestForLog(Slope):
    """The best loss so far, for a log line only"""

    def begin(self) -> None:
        self.best = float("inf")

    def train(self) -> None:
        super().train()
        self.best = min(self.best, self.weight**2)
        LOGGER.debug("best so far: %g", self.best)


class StateFromState(Slope):
    """A number that `load_state_dict` computes from another one in the state"""

    def begin(self) -> None:
        self.decay = 1.0

    def push(self) -> float:
        self.decay = 0.99**self.steps
        return self.decay

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.decay = 0.99**self.steps


def while_around(run: Any) -> None:
    """Epochs of four steps each, counted by a `while` loop around"""
    steps, weight, epoch = iter(run.steps()), 1.0, 0
    while epoch < 1000:
        for step in steps:
            weight -= run["lr"] * (weight - target(step) / (epoch + 1))
            run.report(loss=weight)
            if step % 4 == 3:
                break
        epoch += 1


def attempts_around(run: Any) -> None:
    """A `for` loop over attempts, of which the first one always goes well"""
    steps, weight = iter(run.steps()), 1.0
    for attempt in range(3):
        try:
            for step in steps:
                weight -= run["lr"] * (weight - target(step + attempt))
                run.report(loss=weight)
        except MemoryError:
            continue


def batches_around(run: Any) -> None:
    """A `for` loop over batches of a tracked loader, each of which takes one step"""
    loader = run.loader(np.arange(20.0), batch_size=4)
    steps, weight = iter(run.steps()), 1.0
    while True:
        for batch in loader:
            for _ in steps:
                weight -= run["lr"] * (weight - float(np.sum(batch)))
                run.report(loss=weight)
                break


KINDS = (
    correct(Timed),
    correct(Stamped),
    correct(ProgressBar),
    correct(Logging),
    correct(LogFile),
    correct(ProcessNames),
    correct(ShownLoss),
    correct(Scratch),
    correct(SampleCache),
    correct(ModuleCache),
    correct(GrowingTable),
    correct(LazyProperty),
    correct(CachedFunction),
    correct(CachedMethod),
    correct(SetOfText),
    correct(Epochs),
    correct(IteratorInStep),
    correct(DrainedQueue),
    correct(ThreadPool),
    correct(PrefetchThread),
    correct(ShapeCache),
    correct(JitCache),
    correct(ConfigObject),
    correct(MutableConfig),
    correct(TemporaryAttributes),
    correct(SavedHistory),
    correct(SavedCounters),
    correct(SavedBest),
    correct(MappedData),
    correct(SparseConstant),
    correct(TableOfData),
    correct(ReSeeded),
    correct(DisplayCount),
    correct(WeakReferences),
    correct(NamedConstants),
    correct(LibraryVersion),
    correct(RunNumber),
    correct(PassingError),
    correct(BestForLog),
    correct(StateFromState),
    correct(while_around),
    correct(attempts_around),
    correct(batches_around),
)
