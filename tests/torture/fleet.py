"""Unlike workers: what each has, what trials ask of them, and how studies share them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from dasktune._engine.scaling import Scale
from dasktune.graph.events import WorkerJoined
from dasktune.needs import NO_NEEDS, Needs, NumericClass
from dasktune.types import Value

FEATURES = {
    "unlike": "workers of two compute classes, and trials that need one of them",
    "numeric": "workers of two numeric classes, which state keys name",
    "devices": "several workers share each device",
    "gangs": "several workers train a trial together",
    "scale": "trials get more devices when there are more workers than trials",
    "shared": "two studies with weights share the workers",
}
"""What the workers of a study may be, and how it uses them."""

MODEL = "model"
"""The hyper-parameter by whose value the needs of a trial are chosen."""

NETWORK = Needs.of({"GPU": 1, "tags": ["network"]})
"""The needs of a trial that two workers train together: all workers have what it asks."""

ON_ONE = (
    NO_NEEDS,
    Needs.of({"tags": ["big"]}),
    Needs.of({"memory": 2}),
    Needs.of([{"memory": 4}, {"tags": ["small"]}]),
)
"""Needs of trials of one worker: of any, or of one of two compute classes."""

ROOM = 2
"""Stages for which a device has memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The equipment of a worker.

    Attributes
    ----------
    numerics
        The numeric class of its hardware; empty where workers are not told apart.
    device
        The device that it shares with others; empty if it shares none.
    gpu
        Its GPU; empty if that is not known.
    pace
        Seconds of a step.
    """

    kind: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    host: str = ""
    numerics: str = ""
    device: str = ""
    gpu: str = ""
    pace: float = 1.0

    def joined(self, worker: str) -> WorkerJoined:
        """Return the event that a worker with all this has joined."""
        return WorkerJoined(
            worker=worker,
            resources=self.resources,
            kind=self.kind,
            tags=self.tags,
            host=self.host,
            numerics=NumericClass(name=self.numerics) if self.numerics else None,
            device=self.device,
            device_bytes=100 if self.device else 0,
            gpu=self.gpu,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The workers of a study, and what its trials ask of them.

    Attributes
    ----------
    features
        Names in `FEATURES`.
    machines
        One for each worker.
    needs
        The needs of a trial by the value of its hyper-parameter `MODEL`.
    weight
        Of its study, if it shares its workers with another one.
    """

    features: frozenset[str] = frozenset()
    machines: tuple[Machine, ...] = (Machine(),)
    needs: Mapping[Value, Needs] = field(default_factory=dict)
    weight: float = 1.0

    @classmethod
    def of(cls, features: frozenset[str], workers: int, rng: random.Random) -> Fleet:
        """Return the workers with some features: of each kind as many as a trial may need."""
        if not features - {"shared"}:
            machines: tuple[Machine, ...] = (Machine(),) * workers
        else:
            machines = tuple(_machines(features, rng))
        needs = {0: NO_NEEDS, 1: NO_NEEDS}
        if "unlike" in features:
            needs = {0: rng.choice(ON_ONE), 1: rng.choice(ON_ONE)}
        if "gangs" in features:
            needs[1] = NETWORK
        return cls(
            features=features, machines=machines, needs=needs, weight=rng.choice((1.0, 1.0, 3.0))
        )

    @property
    def has_needs(self) -> bool:
        """Whether trials have needs of their own."""
        return not self.features.isdisjoint({"unlike", "gangs"})

    @property
    def scale(self) -> Scale | None:
        """The rule by which trials get more devices, if they do."""
        return Scale(max=2, efficiency=0.5) if "scale" in self.features else None

    def needs_of(self, values: Mapping[str, Value]) -> Needs:
        """Return the needs of a configuration."""
        return self.needs[values[MODEL]]

    def devices_of(self, needs: Needs | None) -> int:
        """Return how many devices train a trial, by its needs."""
        return 2 if needs == NETWORK else 1


def _machines(features: frozenset[str], rng: random.Random) -> list[Machine]:
    """Return machines with some features, several of each group of equal ones."""
    groups = [("", "")]
    if "unlike" in features:
        groups = [("fast", ""), ("slow", "")]
    if "numeric" in features:
        apart = [("fast", "cuda A"), ("slow", "cuda B")]
        mixed = [("fast", "cuda A"), ("fast", "cuda B"), ("slow", "cuda A")]
        groups = [("", "cuda A"), ("", "cuda B")]
        groups = rng.choice((apart, mixed)) if "unlike" in features else groups
    together = not features.isdisjoint({"gangs", "scale"})
    count = rng.choice((2, 3)) if together or "devices" in features else 1
    count = 4 if together and "devices" in features else count
    return [
        Machine(
            kind=kind,
            resources={"GPU": 1.0, "memory": 1.0 if kind == "slow" else 2.0},
            tags=frozenset({"network", "small" if kind == "slow" else "big"}),
            host=f"host{rng.randrange(2)}",
            numerics=numerics,
            device=f"device {group}-{place // 2}" if "devices" in features else "",
            # Of three workers two are on one GPU: they cannot train a trial together.
            gpu=f"gpu {group}-{place // 2 if count == 3 else place}" if together else "",
            # Trials get more devices if a stage ends 10 seconds sooner by that.
            pace=(2.0 if kind == "slow" else 1.0) * (10.0 if "scale" in features else 1.0),
        )
        for group, (kind, numerics) in enumerate(groups)
        for place in range(count)
    ]


def feature_set(rng: random.Random) -> frozenset[str]:
    """Return the features of a seed: none of them in half of the seeds."""
    if rng.random() < 0.5:
        return frozenset()
    drawn = {name for name in FEATURES if rng.random() < 0.35}
    if "scale" in drawn:
        drawn -= {"gangs"}  # their trials have one device at first
    return frozenset(drawn or {rng.choice(list(FEATURES))})
