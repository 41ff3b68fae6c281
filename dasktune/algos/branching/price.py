"""The price of a proposal: the steps that must still be trained, from a search plan."""

from __future__ import annotations

from dasktune.graph.keys import root_key
from dasktune.graph.plan import SearchPlan, nodes_along
from dasktune.types import Sequences, Step


class Prices:
    """The steps that trials of one source share, as a search plan.

    It knows the trials of its own tuner alone: no store is read, so that equal reports give
    equal prices. What other studies have stored, and the copies of PBT, make a trial cheaper
    than it says.
    """

    def __init__(self) -> None:
        self._plan = SearchPlan(root_key("", 0))

    def store(self, trial: int, sequences: Sequences, steps: Step) -> None:
        """Note that a trial is trained to `steps`, or will be before others begin."""
        path = self._plan.paths.get(trial)
        if path is None or path.leaf.stop < steps:
            self._plan.register(trial, sequences, steps)

    def price(self, sequences: Sequences, until: Step) -> Step:
        """Return the steps up to `until` that no trial has in common with these sequences.

        Examples
        --------
        >>> from dasktune.sequences import Constant, MultiStep
        >>> prices = Prices()
        >>> prices.store(0, {"lr": Constant(0.1)}, 60)
        >>> prices.price({"lr": MultiStep(0.1, [45], gamma=0.1)}, 60)
        15
        """
        parts = [
            part for root in self._plan.roots for _, part in nodes_along(root, sequences, until)
        ]
        return until - max(parts, default=0)
