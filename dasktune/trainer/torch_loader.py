"""A `DataLoader` of torch with a position that can be saved, whatever its sampler and workers."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from dasktune.errors import ConfigurationError, StateError
from dasktune.trainer.generators import global_states, restore_global

_ORDER, _BATCH = 0, 1

_OPTIONS = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor"),
    *("multiprocessing_context", "persistent_workers", "in_order"),
)
"""Options of a `DataLoader` that are taken over as they are."""


class ResumableDataLoader:
    """The batches of a `DataLoader`, epoch after epoch; made by `loader`.

    Iterating over it gives the rest of the present epoch. The state is a few numbers: the epoch,
    and the batches *taken* in it (what workers have prefetched does not count).

    The batches of an epoch are drawn at its beginning, with all generators seeded from (seed,
    epoch) meanwhile: Python's, NumPy's and torch's, and those of the loader and its samplers. In
    worker processes, these three are seeded for each batch, so random transforms give the same
    with any number of workers. Without workers, transforms draw from the generators of the
    process, which a `dasktune.TorchTrainer` saves.

    Parameters
    ----------
    source
        The loader of torch; its data set must be map-style.
    seed
        Decides the order of the samples, in place of seeds of its own.

    Raises
    ------
    ConfigurationError
        If the position cannot be saved: an iterable data set, no batches, or a sampler whose order
        its generators do not decide.
    """

    def __init__(self, source: DataLoader[Any], *, seed: int) -> None:
        if isinstance(source.dataset, IterableDataset) or source.batch_sampler is None:
            raise ConfigurationError(
                "a DataLoader must have a map-style data set (len() and [index]) and batches to be "
                f"resumed, got {type(source.dataset).__name__}, batch_size={source.batch_size}"
            )
        self.source, self._seed = source, seed
        self._epoch = self._taken = 0
        self._batches: Iterator[Any] | None = None
        self._order, self._known = _FixedOrder(), -1
        self._inner: DataLoader[Any] = DataLoader(
            _SeededBatches(source.dataset, seed),  # type: ignore[arg-type]
            batch_sampler=self._order,
            # torch draws a seed from it at each beginning, else from the global generator.
            generator=torch.Generator(),
            **{name: getattr(source, name) for name in _OPTIONS if hasattr(source, name)},
        )
        self._draw()
        first, self._known = self._order.batches, -1
        self._draw()
        if first != self._order.batches:
            sampler = type(source.sampler).__name__
            raise ConfigurationError(
                f"the order of a {sampler} must follow from generators of Python, NumPy or torch "
                "that can be seeded, got two orders with one seed"
            )

    @property
    def epoch(self) -> int:
        """Number of whole epochs taken."""
        return self._epoch

    @property
    def fixed(self) -> list[Any]:
        """The loader of torch and its generators, whose own states are of no use."""
        return [self.source, *self._generators()]

    def __len__(self) -> int:
        """Return the number of batches left in the present epoch."""
        self._draw()
        return len(self._order.batches) - self._taken

    def next_batch(self) -> Any:
        """Return the next batch; after the last one of an epoch, the first of the next epoch."""
        self._draw()
        if self._batches is None:
            self._order.first = self._taken
            self._batches = iter(self._inner)
        batch = next(self._batches)
        self._taken += 1
        if self._taken == len(self._order.batches):
            self._epoch, self._taken, self._batches = self._epoch + 1, 0, None
        return batch

    def __iter__(self) -> Iterator[Any]:
        epoch = self._epoch
        while self._epoch == epoch:
            yield self.next_batch()

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and a checksum of the order of the present epoch."""
        self._draw()
        return {"epoch": self._epoch, "taken": self._taken, "order": self._order.checksum()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position of another loader of the same data.

        Raises
        ------
        StateError
            If the samples come in another order here.
        """
        self._epoch, self._taken, self._batches = state["epoch"], state["taken"], None
        self._draw()
        if self._order.checksum() != state["order"]:
            raise StateError("loader['order']", "another seed, sampler or data give another order")

    def _draw(self) -> None:
        """Draw the batches of the present epoch, unless they are known."""
        if self._known == self._epoch:
            return
        number, sampler = _number(self._seed, _ORDER, self._epoch), self.source.batch_sampler
        states = global_states()
        try:
            _seed_process(number)
            for generator in self._generators():
                generator.manual_seed(number)
            for each in (sampler, getattr(sampler, "sampler", None)):
                if set_epoch := getattr(each, "set_epoch", None):
                    set_epoch(self._epoch)
            batches = [list(batch) for batch in sampler or ()]
        finally:
            restore_global(states)
        if not batches:
            raise ConfigurationError("a DataLoader must have at least one batch, got none")
        self._order.batches, self._order.epoch = batches, self._epoch
        self._known = self._epoch

    def _generators(self) -> list[torch.Generator]:
        sampler = self.source.batch_sampler
        holders = (self.source, sampler, getattr(sampler, "sampler", None))
        held = [getattr(holder, "generator", None) for holder in holders]
        return [each for each in held if isinstance(each, torch.Generator)]


def loader(source: DataLoader[Any], *, seed: int) -> ResumableDataLoader:
    """Return a loader of torch's batches with a position that can be saved.

    Parameters
    ----------
    source, seed
        See `ResumableDataLoader`.

    Raises
    ------
    ConfigurationError
        If its position cannot be saved.

    Examples
    --------
    >>> batches = loader(DataLoader(range(5), batch_size=2, shuffle=True), seed=0)
    >>> first = batches.next_batch()
    >>> state, rest = batches.state_dict(), [batch.tolist() for batch in batches]
    >>> batches.load_state_dict(state)
    >>> rest == [batch.tolist() for batch in batches]
    True
    """
    if not isinstance(source, DataLoader):
        raise ConfigurationError(
            "dasktune.loader takes a DataLoader of torch, got "
            f"{type(source).__name__}; see dasktune.ResumableLoader for arrays and data sets"
        )
    return ResumableDataLoader(source, seed=seed)


class _FixedOrder:
    """Batches of indices from a first one on, each with its place: a sampler for torch."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.epoch = self.first = 0

    def __iter__(self) -> Iterator[list[Any]]:
        for place, batch in enumerate(self.batches[self.first :], self.first):
            yield [(self.epoch, place), *batch]

    def __len__(self) -> int:
        return len(self.batches) - self.first

    def checksum(self) -> int:
        """Return a checksum of all batches."""
        return zlib.crc32(repr(self.batches).encode())


class _SeededBatches:
    """A data set that gives whole batches, and seeds worker processes for each."""

    def __init__(self, source: Any, seed: int) -> None:
        self._source, self._seed = source, seed

    def __len__(self) -> int:
        return len(self._source)

    def __getitems__(self, batch: list[Any]) -> list[Any]:
        (epoch, place), *indices = batch
        if get_worker_info() is not None:
            _seed_process(_number(self._seed, _BATCH, epoch, place))
        if getattr(self._source, "__getitems__", None):
            return list(self._source.__getitems__(indices))
        return [self._source[index] for index in indices]


def _number(seed: int, *purpose: int) -> int:
    """Return a seed for one purpose."""
    sequence = np.random.SeedSequence(seed, spawn_key=purpose)
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def _seed_process(number: int) -> None:
    """Seed the generators of this process, without those of its GPUs."""
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.default_generator.manual_seed(number)
