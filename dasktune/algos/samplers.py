"""Sources: where the configurations of a tuner come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import numpy as np

from dasktune.algos.base import Proposal
from dasktune.errors import ConfigurationError
from dasktune.space import Configuration, Drawing, Space
from dasktune.space.define_by_run import AnySpace
from dasktune.types import Step


class Source(ABC):
    """Proposes configurations, and may learn from how trials go.

    Whatever `propose` returns is an input of the tuner and kept in the log: a replay gives
    it to `accept` again and never proposes anew.
    """

    learns: bool = False
    """Whether what it proposes depends on losses; if not, all is proposed at the start."""

    logged: bool = True
    """Whether what it proposes is kept in the log; not if seed and number say it all."""

    most: int | None = None
    """How many configurations it has; None if there is no end of them."""

    @abstractmethod
    def propose(self, trial: int) -> Proposal:
        """Return a proposal for a trial of this number, with ``point`` by coordinate."""

    @abstractmethod
    def accept(self, trial: int, proposal: Proposal) -> Configuration:
        """Return the configuration of a proposal: its own, a user's, or one from the log."""

    def known(self, trials: int) -> tuple[Configuration, ...] | None:
        """Return the first `trials` configurations; None if they depend on what comes."""
        return None

    def expect(self, objectives: int) -> None:
        """Take in how many losses a report will have, where that is known."""

    def earlier(self, point: Mapping[str, object], step: Step, losses: tuple[float, ...]) -> None:
        """Take in a trial that another tuner, or another study, has finished."""

    def observe(self, trial: int, step: Step, losses: tuple[float, ...]) -> None:
        """Take in a report of a trial: losses are finite or plus infinity."""

    def fail(self, trial: int) -> None:
        """Take in that a trial failed."""

    @abstractmethod
    def identity(self) -> object:
        """Return what is the same for sources that propose alike; JSON."""

    @abstractmethod
    def snapshot(self) -> object:
        """Return the state as JSON."""

    @abstractmethod
    def restore(self, snapshot: object) -> None:
        """Take over the state that a source of the same identity had."""


class RandomSource(Source):
    """Draws every coordinate on its own, each trial with a generator of its own.

    Parameters
    ----------
    space
        What to draw from.
    seed
        Decides what is drawn.

    References
    ----------
    Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", section 2.
    """

    logged = False

    def __init__(self, space: AnySpace, seed: int) -> None:
        self._space = space
        self._seed = seed
        self._picked: tuple[int, Configuration] | None = None

    def propose(self, trial: int) -> Proposal:
        """Return a random point; it depends on nothing but the seed and the number."""
        found = self._space.pick(self._drawing(trial))
        self._picked = trial, found
        return {"point": dict(found.point)}

    def accept(self, trial: int, proposal: Proposal) -> Configuration:
        """Return the configuration at the proposal's point; what it lacks is drawn."""
        point = proposal["point"]
        if not isinstance(point, Mapping):
            raise TypeError(f"a point must be a mapping, got {point!r}")
        if self._picked is not None and (trial, point) == (self._picked[0], self._picked[1].point):
            return self._picked[1]
        return self._space.at(point, otherwise=self._drawing(trial))

    def known(self, trials: int) -> tuple[Configuration, ...]:
        """Return the first `trials` configurations."""
        return tuple(self.accept(trial, self.propose(trial)) for trial in range(trials))

    def identity(self) -> object:
        """Return None: it is what draws unless a sampler is given."""
        return None

    def snapshot(self) -> object:
        """Return None: it has no state."""
        return None

    def restore(self, snapshot: object) -> None:
        """Do nothing."""

    def _drawing(self, trial: int) -> Drawing:
        return Drawing(np.random.default_rng((self._seed, trial)))


class GivenSource(Source):
    """Gives configurations in order, each once; a user's points do not come in between.

    Parameters
    ----------
    configurations
        Which.
    identity
        What tells them from others; JSON.
    """

    logged = False

    def __init__(self, configurations: Iterable[Configuration], identity: object) -> None:
        self._configurations = tuple(configurations)
        self._identity = identity
        self.most = len(self._configurations)

    def propose(self, trial: int) -> Proposal:
        """Return nothing: the number of the trial says it all."""
        return {}

    def accept(self, trial: int, proposal: Proposal) -> Configuration:
        """Return the configuration of that number."""
        return self._configurations[trial]

    def known(self, trials: int) -> tuple[Configuration, ...]:
        """Return the first `trials` configurations."""
        return self._configurations[:trials]

    def identity(self) -> object:
        """Return what tells it from others."""
        return self._identity

    def snapshot(self) -> object:
        """Return None: it has no state."""
        return None

    def restore(self, snapshot: object) -> None:
        """Do nothing."""


def grid_source(space: AnySpace) -> GivenSource:
    """Return a source of the configurations of a grid.

    Raises
    ------
    ConfigurationError
        If the grid cannot be walked.
    """
    if not isinstance(space, Space):
        raise ConfigurationError(f"a grid needs a Space, got {space!r}")
    return GivenSource(space.configurations(), "grid")
