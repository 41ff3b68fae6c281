"""Sources of the configurations of a tuner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import numpy as np

from dasktune.algos.base import Proposal
from dasktune.algos.forest.priority import Priority, PriorityQuestion
from dasktune.algos.forest.ranks import ModelWeight
from dasktune.errors import ConfigurationError, InternalError
from dasktune.space import Configuration, Drawing, Space
from dasktune.space.define_by_run import SpaceLike
from dasktune.types import Step

_MOST_PICKED = 1000
"""Drawn configurations that a random source keeps."""


class Source(ABC):
    """Proposes configurations, and may learn from how trials go.

    A proposal is an input of the tuner and stands in the event log: a replay gives it to
    `accept` again and proposes nothing anew.
    """

    learns: bool = False
    """Whether proposals depend on losses; if not, all are made at the start."""

    logged: bool = True
    """Whether proposals stand in the event log; not if they follow from seed and number."""

    most: int | None = None
    """The number of its configurations; None if there is no end of them."""

    @abstractmethod
    def propose(self, trial: int) -> Proposal:
        """Return a proposal for a trial of this number, with ``point`` by coordinate."""

    @abstractmethod
    def accept(self, trial: int, proposal: Proposal) -> Configuration:
        """Return the configuration of a proposal: its own, a user's, or one from the event log."""

    def known(self, trials: int) -> tuple[Configuration, ...] | None:
        """Return the first `trials` configurations; None if they depend on later losses."""
        return None

    def expect(self, objectives: int) -> None:
        """Receive the number of losses of a report, if it is known."""

    def earlier(self, point: Mapping[str, object], step: Step, losses: tuple[float, ...]) -> None:
        """Observe a trial that another tuner, or another study, has finished."""

    def observe(self, trial: int, step: Step, losses: tuple[float, ...]) -> None:
        """Observe a report of a trial: losses are finite or plus infinity."""

    def fail(self, trial: int) -> None:
        """Observe the failure of a trial."""

    def retry(self, trial: int) -> None:
        """Observe that a failed trial is trained again."""

    @property
    def model_weights(self) -> list[ModelWeight]:
        """The models that it searches apart, with their weights; empty if it does not."""
        return []

    def model_rank(self, trial: int) -> float | None:
        """Return the rank of an accepted trial's model, from 0 to 1; None without ranks."""
        return None

    def due_models(self) -> list[int]:
        """Return the models whose priority must be computed anew; each is returned once."""
        return []

    def model_question(self, model: int) -> PriorityQuestion:
        """Return the question for the priority of a model."""
        raise InternalError(f"{type(self).__name__} has no models, asked for model {model}")

    def learn_priority(self, model: int, priority: Priority | None) -> None:
        """Receive the priority of a model; None if its computation failed."""

    @abstractmethod
    def identity(self) -> object:
        """Return JSON that is equal for sources with equal proposals."""

    def snapshot(self) -> object:
        """Return the state as JSON, or None."""
        return None

    def restore(self, snapshot: object) -> None:
        """Continue with the snapshot of a source of the same identity."""


class Sampler(ABC):
    """A sampler of dasktune: it becomes a source when a tuner gives it a space."""

    @abstractmethod
    def source(self, space: SpaceLike, seed: int) -> Source:
        """Return a new source of configurations of a space; `seed` decides its draws.

        Raises
        ------
        ConfigurationError
            If the sampler cannot propose from the space.
        """


class RandomSource(Source):
    """Draws every coordinate on its own, each trial with a generator of its own.

    Parameters
    ----------
    space
        The space to draw from.
    seed
        Decides the draws.

    References
    ----------
    Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", section 2.
    """

    logged = False

    def __init__(self, space: SpaceLike, seed: int) -> None:
        self._space = space
        self._seed = seed
        self._picked: dict[int, Configuration] = {}
        """Configurations by trial: a function that defines the space is called once for each."""

    def propose(self, trial: int) -> Proposal:
        """Return a random point; it depends only on the seed and the number."""
        if trial not in self._picked:
            if len(self._picked) >= _MOST_PICKED:
                self._picked.clear()
            self._picked[trial] = self._space.pick(self._drawing(trial))
        return {"point": dict(self._picked[trial].point)}

    def accept(self, trial: int, proposal: Proposal) -> Configuration:
        """Return the configuration at the proposal's point; missing coordinates are drawn."""
        point = proposal["point"]
        if not isinstance(point, Mapping):
            raise TypeError(f"a point must be a mapping, got {point!r}")
        if trial in self._picked and point == self._picked[trial].point:
            return self._picked[trial]
        return self._space.at(point, otherwise=self._drawing(trial))

    def known(self, trials: int) -> tuple[Configuration, ...]:
        """Return the first `trials` configurations."""
        return tuple(self.accept(trial, self.propose(trial)) for trial in range(trials))

    def identity(self) -> object:
        """Return None: the identity of a tuner without a sampler."""
        return None

    def _drawing(self, trial: int) -> Drawing:
        return Drawing(np.random.default_rng((self._seed, trial)))


class GivenSource(Source):
    """Gives configurations in order, each once, without queued points of a user.

    Parameters
    ----------
    configurations
        The configurations.
    identity
        JSON that other configurations do not have.
    """

    logged = False

    def __init__(self, configurations: Iterable[Configuration], identity: object) -> None:
        self._configurations = tuple(configurations)
        self._identity = identity
        self.most = len(self._configurations)

    def propose(self, trial: int) -> Proposal:
        """Return an empty proposal: the number of the trial is enough."""
        return {}

    def accept(self, trial: int, proposal: Proposal) -> Configuration:
        """Return the configuration of that number."""
        return self._configurations[trial]

    def known(self, trials: int) -> tuple[Configuration, ...]:
        """Return the first `trials` configurations."""
        return self._configurations[:trials]

    def identity(self) -> object:
        """Return the given identity."""
        return self._identity


def grid_source(space: SpaceLike) -> GivenSource:
    """Return a source of the configurations of a grid.

    Raises
    ------
    ConfigurationError
        If the space has no finite grid.
    """
    if not isinstance(space, Space):
        raise ConfigurationError(f"a grid needs a Space, got {space!r}")
    return GivenSource(space.configurations(), "grid")
