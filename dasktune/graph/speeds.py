"""Measured seconds per step, learned while stages run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dasktune.graph.plan import Node
from dasktune.types import Sequences, Step, Value

Group = tuple[tuple[str, object], ...]
"""Hyper-parameters that are not floats, with their values: what decides a step's cost."""

_MEMORY_STEPS = 10_000.0
_CHANGE = 0.1


class Speeds:
    """Mean seconds per step by configuration; the mean of all where nothing is known.

    Configurations are told apart by what is not a float (batch size, architecture,
    optimizer): a learning rate does not change what a step costs. Older measurements fade
    once a group has seen 10,000 steps.

    Parameters
    ----------
    values_at
        Gives the hyper-parameters at a step; None for those of the sequences themselves. On
        recorded curves a trial is but the number of what was recorded.
    """

    def __init__(
        self, values_at: Callable[[Sequences, Step], Mapping[str, Value]] | None = None
    ) -> None:
        self._values_at = values_at or _values_at
        self._seconds: dict[Group, float] = {}
        self._steps: dict[Group, float] = {}
        self._groups: dict[Node, Group] = {}
        self._all_seconds = 0.0
        self._all_steps = 0.0
        self._seen = 0
        self._used: dict[Group, float] = {}

    def seconds_per_step(self, node: Node) -> float:
        """Return the estimate for a node; 1.0 while nothing has been measured."""
        if not self._all_steps:
            return 1.0
        group = self._group_of(node)
        steps = self._steps.get(group)
        if not steps:
            return self._all_seconds / self._all_steps
        return self._seconds[group] / steps

    @property
    def is_known(self) -> bool:
        """Whether anything has been measured."""
        return self._all_steps > 0

    def observe(self, node: Node, *, steps: int, seconds: float) -> bool:
        """Add a measurement; return whether lengths should be recomputed from the estimates.

        That is so the first time, and later when the number of measurements has doubled
        and an estimate moved by more than a tenth: rarely, so that what it costs to
        reweigh everything is small beside the events themselves.
        """
        if steps <= 0 or seconds <= 0:
            return False
        group = self._group_of(node)
        fade = min(1.0, _MEMORY_STEPS / (self._steps.get(group, 0.0) + 1.0))
        self._seconds[group] = self._seconds.get(group, 0.0) * fade + seconds
        self._steps[group] = self._steps.get(group, 0.0) * fade + steps
        self._all_seconds += seconds
        self._all_steps += steps
        self._seen += 1
        if self._seen & (self._seen - 1):
            return False
        now = {each: self._seconds[each] / self._steps[each] for each in self._steps}
        moved = any(
            abs(value - self._used.get(each, 0.0)) > _CHANGE * value for each, value in now.items()
        )
        self._used = now
        return moved

    def _group_of(self, node: Node) -> Group:
        group = self._groups.get(node)
        if group is None:
            values = self._values_at(node.sequences, node.start).items()
            group = tuple(sorted(pair for pair in values if not isinstance(pair[1], float)))
            self._groups[node] = group
        return group


def _values_at(sequences: Sequences, step: Step) -> Mapping[str, Value]:
    return {name: function(step) for name, function in sequences.items()}
