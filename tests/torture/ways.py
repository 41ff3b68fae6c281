"""The model of training: states and metrics as pure functions of the values before them."""

from __future__ import annotations

from dasktune.graph.devices import devices_at, without_devices
from dasktune.graph.keys import Chain, root_key
from dasktune.graph.plan import Node
from dasktune.needs import NumericClass
from dasktune.types import Metrics, Sequences, Step

ROOT = root_key("torture", 0)
"""The state key before any step."""

State = int
"""A state: the fold of all the values that made it. It knows nothing of keys but the root's."""


class Way:
    """The states of one configuration by step.

    Parameters
    ----------
    sequences
        Its hyper-parameters.
    root
        The key before any step.
    """

    def __init__(self, sequences: Sequences, root: str) -> None:
        self.sequences = sequences
        self._ordered = [one for _, one in sorted(without_devices(sequences).items())]
        self._states = [int(root[:15], 16)]

    def state(self, step: Step) -> State:
        """Return the state after `step` steps."""
        states = self._states
        while len(states) <= step:
            at = len(states) - 1
            values = [one(at) for one in self._ordered]
            devices = devices_at(self.sequences, at)
            if devices > 1:  # the sum of several parts has other last bits
                values.append(devices)
            states.append(hash((states[-1], tuple(values))))
        return states[step]

    def states(self, start: Step, stop: Step) -> list[State]:
        """Return the states after each of the steps (start, stop]."""
        self.state(stop)
        return self._states[start + 1 : stop + 1]


def metrics_of(state: State) -> Metrics:
    """Return the metrics of a state."""
    return {"loss": state % 1_000_003 / 1_000_003}


class Ways:
    """All ways that were met, made once each."""

    def __init__(self) -> None:
        self._ways: dict[tuple[int, str], Way] = {}

    def of(self, node: Node) -> Way:
        """Return the way to a node."""
        top: Node = node
        while top.parent is not None:
            top = top.parent
        return self.along(node.sequences, top.key_at(0))

    def along(self, sequences: Sequences, root: str) -> Way:
        """Return the way of a configuration from a root."""
        way = self._ways.get((id(sequences), root))
        if way is None:
            way = self._ways[id(sequences), root] = Way(sequences, root)
        return way


def root_of(trial: int, seed: int, *, merge: bool, numerics: NumericClass | None = None) -> str:
    """Return the key before any step of a trial on a numeric class, as the plan has it."""
    key = root_key(ROOT, seed) if seed else ROOT
    key = key if merge else root_key(key, trial)
    return key if numerics is None else Chain(key).named(numerics.facts).key
