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
    >>> wishes.add("a1f0", {"lr": MultiStep(0.1, milestones=[30])}, ends=[60])
    >>> wishes.on_way("a1f0", {"lr": Constant(0.1)}, 0, 100)
    (30,)
    """

    def __init__(self) -> None:
        self._plans: dict[str, SearchPlan] = {}
        self._count = 0

    def add(self, root: str, sequences: Sequences, ends: Collection[Step]) -> None:
        """Take in that someone wants the states at `ends` of a configuration."""
        plan = self._plans.get(root)
        if plan is None:
            plan = self._plans[root] = SearchPlan(root)
        for end in sorted(ends, reverse=True):
            plan.register(self._count, sequences, end)
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
