"""Endless batches with a position that can be saved and a size that can change at any step.

Uses NumPy; torch only if the data are torch tensors.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from dasktune._numbers import whole_of
from dasktune.errors import ConfigurationError, StateError, refuse
from dasktune.trainer.code import dumps_by_value

Indices = NDArray[np.int64]
Transform = Callable[[Any, np.random.Generator], Any]
"""Takes a sample and a generator for it, and returns the changed sample."""

_ORDER, _SAMPLE = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The number of whole epochs consumed, and of samples in the current epoch."""

    epoch: int
    consumed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """The permutation of one epoch, and its checksum."""

    epoch: int
    indices: Indices
    checksum: int


class ResumableLoader:
    """Endless batches over the epochs of a data set.

    The order of an epoch is a permutation made from (seed, epoch) alone, and the state is
    a few numbers: the epoch, the samples *consumed* in it (what is prefetched does not
    count) and the batch size. Setting `batch_size` takes effect on the next batch, also
    within an epoch and however many batches were prefetched.

    Parameters
    ----------
    source
        An array or tensor, a tuple of some with equal lengths, or a map-style data set
        (``len()`` and ``[index]``).
    batch_size
        Samples per batch; the last batch of an epoch may be smaller.
    seed
        Decides the order of the samples and the generators of `transform`.
    shuffle
        Whether an epoch's order is random; otherwise it is the order of the source.
    drop_last
        Leave out the last batch of an epoch if it is smaller.
    workers
        Threads or processes that prepare batches in advance; with 0, `next_batch` prepares
        its batch itself.
    prefetch
        Number of batches prepared in advance if there are workers.
    transform
        Called as ``transform(sample, generator)`` for every sample. The generator is made
        from (seed, epoch, index), so the result is the same after resuming and with any
        number of workers (about 15 us per sample).
    processes
        Whether workers are processes, for Python code that cannot run in parallel threads.
        Each process then gets a copy of the source.

    Notes
    -----
    A source that draws from global generators cannot be resumed: draw from the generator that
    `transform` receives instead.

    Examples
    --------
    >>> loader = ResumableLoader(np.arange(5), 2, seed=0, shuffle=False)
    >>> [loader.next_batch().tolist() for _ in range(4)]
    [[0, 1], [2, 3], [4], [0, 1]]
    >>> state = loader.state_dict()
    >>> loader.batch_size = 3
    >>> loader.next_batch().tolist()
    [2, 3, 4]
    >>> loader.load_state_dict(state)
    >>> loader.next_batch().tolist()
    [2, 3]
    """

    def __init__(
        self,
        source: Any,
        batch_size: int,
        *,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = False,
        workers: int = 0,
        prefetch: int = 2,
        transform: Transform | None = None,
        processes: bool = False,
    ) -> None:
        self._fetch = _Fetch(source, seed, transform)
        self._seed, self._shuffle, self._drop_last = seed, shuffle, drop_last
        self._samples = len(self._fetch)
        refuse(_problems(self._samples, seed, workers, prefetch))
        self._batch_size = self._checked_size(batch_size)
        self._position = Position(epoch=0, consumed=0)
        self._current: _Order | None = None
        self._ahead = prefetch if workers else 0
        self._queue: deque[tuple[Future[Any], Position]] = deque()
        self._executor = _executor(self._fetch, workers, processes) if workers else None

    @property
    def batch_size(self) -> int:
        """Samples in the next batch; may be set at any time."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        size = self._checked_size(size)
        if size != self._batch_size:
            self._batch_size = size
            self._forget_prefetched()

    @property
    def epoch(self) -> int:
        """Number of whole epochs consumed."""
        return self._position.epoch

    @property
    def consumed(self) -> int:
        """Number of samples consumed in the current epoch."""
        return self._position.consumed

    @property
    def samples(self) -> int:
        """Number of samples in an epoch."""
        return self._samples

    def __len__(self) -> int:
        """Return the number of batches left in the current epoch at this batch size."""
        left = self._samples - self._position.consumed
        return left // self._batch_size if self._drop_last else -(-left // self._batch_size)

    def next_batch(self) -> Any:
        """Return the next batch, in the form of the source: array, tensor, tuple, dict."""
        if self._executor is None:
            indices, epoch, after = self._plan(self._position)
            batch = self._fetch(indices, epoch)
        else:
            self._fill(self._executor)
            future, after = self._queue[0]
            batch = future.result()
            self._queue.popleft()
        self._position = after
        return batch

    def __iter__(self) -> Iterator[Any]:
        return self.epoch_batches()

    def epoch_batches(self) -> Iterator[Any]:
        """Yield the remaining batches of the current epoch."""
        epoch = self._position.epoch
        while self._position.epoch == epoch:
            yield self.next_batch()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the loader, and a checksum of its present order."""
        return {
            "epoch": self._position.epoch,
            "consumed": self._position.consumed,
            "batch_size": self._batch_size,
            "samples": self._samples,
            "order": self._order(self._position.epoch).checksum,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position of another loader of the same data.

        Raises
        ------
        StateError
            If the data have another length, or this seed gives another order.
        """
        if state["samples"] != self._samples:
            reason = f"must be {self._samples}, the length of the data, got {state['samples']}"
            raise StateError("loader['samples']", reason)
        if self._order(state["epoch"]).checksum != state["order"]:
            raise StateError("loader['order']", "another seed or NumPy gives another order")
        self._forget_prefetched()
        self._batch_size = self._checked_size(state["batch_size"])
        self._position = Position(epoch=state["epoch"], consumed=state["consumed"])

    def close(self) -> None:
        """Stop the workers; they also stop when the loader is deleted."""
        self._forget_prefetched()
        if self._executor is not None:
            self._executor.shutdown()

    def _checked_size(self, size: int) -> int:
        if whole_of(size) is None:
            raise ConfigurationError(f"batch_size must be an integer >= 1, got {size!r}")
        if self._drop_last and size > self._samples:
            raise ConfigurationError(
                f"batch_size must be <= {self._samples}, the length of the data, "
                f"with drop_last, got {size}"
            )
        return int(size)

    def _order(self, epoch: int) -> _Order:
        if self._current is None or self._current.epoch != epoch:
            indices = np.arange(self._samples, dtype=np.int64)
            if self._shuffle:
                _generator(self._seed, _ORDER, epoch).shuffle(indices)
            checksum = zlib.crc32(indices.tobytes())
            self._current = _Order(epoch=epoch, indices=indices, checksum=checksum)
        return self._current

    def _plan(self, position: Position) -> tuple[Indices, int, Position]:
        """Return the samples of the batch at a position, its epoch and the position after."""
        epoch, start = position.epoch, position.consumed
        if self._drop_last and self._samples - start < self._batch_size:
            # The batch size grew within the epoch, so the rest is smaller than a batch.
            epoch, start = epoch + 1, 0
        stop = min(start + self._batch_size, self._samples)
        left = self._samples - stop
        is_over = left < self._batch_size if self._drop_last else left == 0
        after = (
            Position(epoch=epoch + 1, consumed=0)
            if is_over
            else Position(epoch=epoch, consumed=stop)
        )
        return self._order(epoch).indices[start:stop], epoch, after

    def _fill(self, executor: Executor) -> None:
        position = self._queue[-1][1] if self._queue else self._position
        while len(self._queue) < max(self._ahead, 1):
            indices, epoch, position = self._plan(position)
            self._queue.append((executor.submit(*self._task(indices, epoch)), position))

    def _task(self, indices: Indices, epoch: int) -> tuple[Any, ...]:
        if isinstance(self._executor, ProcessPoolExecutor):
            return _fetch_in_worker, indices, epoch
        return self._fetch, indices, epoch

    def _forget_prefetched(self) -> None:
        for future, _ in self._queue:
            future.cancel()
        self._queue.clear()


class _Fetch:
    """Makes a batch of given samples; has no state, so any worker can use it."""

    def __init__(self, source: Any, seed: int, transform: Transform | None) -> None:
        self._source, self._seed, self._transform = source, seed, transform
        self._parts = source if isinstance(source, tuple) else (source,)
        self._is_arrays = all(_is_array(part) for part in self._parts)

    def __len__(self) -> int:
        if not self._is_arrays:
            return _length(self._source, self._parts)
        lengths = {len(part) for part in self._parts}
        if len(lengths) != 1:
            raise ConfigurationError(
                f"arrays of one data set must be equally long, got {sorted(lengths)}"
            )
        return lengths.pop()

    def __call__(self, indices: Indices, epoch: int) -> Any:
        if self._is_arrays and self._transform is None:
            taken = tuple(part[indices] for part in self._parts)
            return taken if isinstance(self._source, tuple) else taken[0]
        return _stacked([self._sample(int(index), epoch) for index in indices])

    def _sample(self, index: int, epoch: int) -> Any:
        if self._is_arrays and isinstance(self._source, tuple):
            sample: Any = tuple(part[index] for part in self._parts)
        else:
            sample = self._source[index]
        if self._transform is None:
            return sample
        return self._transform(sample, _generator(self._seed, _SAMPLE, epoch, index))


class _Worker:
    """The global of a worker process that makes batches, set when the process starts."""

    fetch: _Fetch


def _start_worker(payload: bytes) -> None:
    _Worker.fetch = cloudpickle.loads(payload)


def _fetch_in_worker(indices: Indices, epoch: int) -> Any:
    return _Worker.fetch(indices, epoch)


def _executor(fetch: _Fetch, workers: int, processes: bool) -> Executor:
    if not processes:
        return ThreadPoolExecutor(workers, thread_name_prefix="dasktune-loader")
    # Spawned, because forking a process with threads may hang. Pickled by value, because the
    # new process may be unable to import the study file that defines the data set.
    payload = dumps_by_value(fetch)
    return ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_start_worker, initargs=(payload,)
    )


def _generator(seed: int, *purpose: int) -> np.random.Generator:
    """Return the generator for one purpose; it does not depend on any other generator."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=purpose))


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or _is_tensor(value)


def _is_tensor(value: Any) -> bool:
    # Recognised by its module, so that torch is not imported for NumPy data.
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "new_empty")


def _length(source: Any, parts: tuple[Any, ...]) -> int:
    # A tuple of other values is more likely a mistake than a data set of few samples.
    if isinstance(source, tuple) or not all(
        hasattr(source, name) for name in ("__len__", "__getitem__")
    ):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise ConfigurationError(
            "the source must be an array, a tensor, a tuple of them or a map-style data set, "
            f"got {f'a tuple of {kinds}' if isinstance(source, tuple) else kinds}"
        )
    return len(source)


def _stacked(samples: Sequence[Any]) -> Any:
    """Return samples as one batch: arrays and numbers are stacked, containers opened."""
    first = samples[0]
    if isinstance(first, tuple):
        return tuple(_stacked(column) for column in zip(*samples, strict=True))
    if isinstance(first, dict):
        return {key: _stacked([sample[key] for sample in samples]) for key in first}
    if _is_tensor(first):
        shape = (len(samples), *first.shape)
        batch = first.new_empty(shape)
        for row, sample in zip(batch, samples, strict=True):
            row.copy_(sample)
        return batch
    if isinstance(first, (np.ndarray, np.generic, bool, int, float, complex)):
        return np.stack([np.asarray(sample) for sample in samples])
    return list(samples)


def _problems(samples: int, seed: int, workers: int, prefetch: int) -> list[str]:
    problems = []
    if samples < 1:
        problems.append("the data must have at least one sample, got none")
    if whole_of(seed, least=0, most=None) is None:
        problems.append(f"seed must be an integer >= 0, got {seed!r}")
    if workers < 0:
        problems.append(f"workers must be >= 0, got {workers}")
    if prefetch < 1:
        problems.append(f"prefetch must be >= 1, got {prefetch}")
    return problems
