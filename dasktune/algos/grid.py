"""Grid search: every configuration of a space, in full."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b

from dasktune.algos.fixed import FixedTrials
from dasktune.errors import ConfigurationError
from dasktune.sequences import Sequence
from dasktune.sequences.values import whole
from dasktune.space import Space
from dasktune.space.space import space_problem
from dasktune.types import Step, Value

Filter = Callable[[Mapping[str, Value | Sequence]], bool]
"""Decides whether a configuration, given by name, belongs to the grid."""


class Grid(FixedTrials):
    """Trains every configuration of a space to `max_steps`.

    Parameters
    ----------
    space
        Each of its domains has a finite number of points.
    max_steps
        The step that each trial is trained to.
    filter
        Decides whether a configuration belongs to the grid; it receives constants as plain
        values, and sequences. Its name and the configurations that it keeps are part of
        the identity.

    Raises
    ------
    ConfigurationError
        If the space has no finite grid, the filter keeps no configuration, or a sequence ends
        before `max_steps`.

    Examples
    --------
    >>> from dasktune.types import Register
    >>> tuner = Grid(Space(lr=[0.1, 0.2], momentum=[0.0, 0.9]), max_steps=60)
    >>> len([decision for decision in tuner.ask(1) if isinstance(decision, Register)])
    4
    """

    def __init__(self, space: Space, max_steps: Step, filter: Filter | None = None) -> None:
        max_steps = whole("max_steps", max_steps, at_least=1)
        if filter is not None and not callable(filter):
            raise ConfigurationError(f"filter must be a function, got {filter!r}")
        if not isinstance(space, Space):
            raise ConfigurationError(space_problem(space, "a Space"))
        kept = [
            (place, configuration)
            for place, configuration in enumerate(space.configurations())
            if filter is None or filter(configuration.objects())
        ]
        super().__init__((configuration for _, configuration in kept), max_steps)
        self.space = space
        self._filter = (
            None if filter is None else _filter_identity(filter, [place for place, _ in kept])
        )

    @property
    def searched_space(self) -> Space:
        """The space of its configurations."""
        return self.space

    def identity(self) -> dict[str, object]:
        """Return class and arguments as JSON."""
        return {
            "tuner": "Grid",
            "space": self.space.to_json(),
            "max_steps": self.max_steps,
            "filter": self._filter,
        }


def _filter_identity(filter: Filter, kept: list[int]) -> dict[str, str]:
    # Two functions may have the same name, as lambdas do; the kept configurations differ.
    digest = blake2b(repr(kept).encode(), digest_size=16).hexdigest()
    name = getattr(filter, "__qualname__", type(filter).__qualname__)
    return {"name": f"{filter.__module__}.{name}", "kept": digest}
