"""What other drivers want of the states that this one makes on its way."""

from __future__ import annotations

from collections.abc import Collection

from dasktune.graph.keys import encode_at
from dasktune.graph.plan import SearchPlan, shared_until
from dasktune.types import Sequences, Step


class Wishes:
    """The paths of others, merged by value as a plan is, for each root.

    Examples
    --------
    >>> from dasktune.sequences import Constant, MultiStep
    >>> wishes = Wishes()
    >>> wishes.add("a1f0", {"lr": MultiStep(0.1, [30], gamma=0.1)}, ends=[60])
    >>> wishes.on_way("a1f0", {"lr": Constant(0.1)}, 0, 100)
    (30,)
    """

    def __init__(self) -> None:
        self._plans: dict[str, SearchPlan] = {}
        self._count = 0

    def add(
        self, root: str, sequences: Sequences, ends: Collection[Step], *, within: Step | None = None
    ) -> None:
        """Take in that someone wants the states at `ends` of a configuration.

        Parameters
        ----------
        root
            The state key before any step.
        sequences
            By name.
        ends
            Steps.
        within
            How far the paths go of which `on_way` will be asked: nothing is computed beyond.

        Raises
        ------
        ConfigurationError
            If a sequence ends, or overflows, before the last of them.
        """
        steps = sorted({end if within is None else min(end, within) for end in ends}, reverse=True)
        for sequence in sequences.values():
            sequence(steps[0] - 1)  # a last value that is finite speaks for all
        plan = self._plans.get(root)
        if plan is None:
            plan = self._plans[root] = SearchPlan(root)
        for step in steps:
            plan.register(self._count, sequences, step)
        self._count += 1

    def on_way(self, root: str, sequences: Sequences, start: Step, stop: Step) -> tuple[Step, ...]:
        """Return the steps between `start` and `stop` at which others need the state.

        That is where they want one, and where the last of them leaves this path.
        """
        plan = self._plans.get(root)
        steps = []
        at = plan.roots[0] if plan is not None and plan.roots else None
        while at is not None and at.stop < stop:
            child = at.children.get(encode_at(sequences, at.stop))
            if child is None:
                break
            limit = min(child.stop, stop)
            part = shared_until(child.sequences, sequences, child.start, limit)
            steps.append(part)
            at = child if part == child.stop else None
        return tuple(step for step in steps if start < step < stop)
