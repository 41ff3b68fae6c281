"""The scenario of a seed: its tuner, its workers and its faults."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dasktune.algos import (
    ASHA,
    PBT,
    POP,
    SHA,
    Bandit,
    EarlyTerm,
    Grid,
    Hyperband,
    MedianStopping,
    Random,
    Repeats,
    StoppingASHA,
    Tuner,
)
from dasktune.algos.curves import Persistence
from dasktune.graph.attempts import DispatchOptions
from dasktune.graph.save_policy import SavePolicy
from dasktune.sequences import Constant, MultiStep, Piecewise, Warmup
from dasktune.space import Space
from tests.torture.fleet import MODEL, Fleet, feature_set
from tests.torture.parts import PARTS, Parts

FAULTS = {
    "crash": "a worker process is killed, with what it has not written",
    "partition": "a worker is cut off and given up, and goes on training and saving",
    "pause": "a worker does and says nothing for a while",
    "retire": "a worker is closing: it saves at its next step, and goes",
    "unsend": "Dask loses stages that a worker has not begun",
    "repeat": "a message comes twice",
    "cloud": "a prediction cannot be made",
    "silence": "what a worker has to say is lost",
    "receipt": "Dask tells of an end before, or again after, the worker's own message",
    "kill": "the driver is killed, between any two of the things it does",
    "drain": "a limit is reached: what runs is saved; then the run goes on in the same process",
    "clock": "the clock jumps",
    "raise": "the trainer raises, once or always",
    "poison": "a step kills every process that trains it",
    "scheduler": "the scheduler is gone, and all workers: they save, and nobody hears of it",
    "evict": "states are evicted, and the engine receives that",
    "lose": "a state that was durable is gone from the store, and nobody says so",
    "lease": "a driver of another study arrives, which trains some of the same steps",
    "vanish": "the driver of the other study dies, with its workers, and never comes back",
    "store": "the store does not answer a driver, or takes long",
    "suspend": "a driver does nothing for a while: its leases may end",
    "save": "a worker saves where nobody asked it to",
    "break": "whatever a worker trains raises from now on, while others are well",
    "forget": "the database loses its last transactions, though it has acknowledged them",
    "full": "Dask pauses a worker, whose memory is nearly full, or lets it go on",
}
"""What may go wrong."""

Dimensions = Mapping[str, Sequence[object]]
"""The values of a space by name."""

SPACES: tuple[Dimensions, ...] = (
    {"lr": [Constant(0.5), MultiStep(0.5, [2], gamma=0.5), MultiStep(0.5, [4], gamma=0.1)]},
    {"lr": [Constant(0.5), Piecewise([0.5, 0.25], boundaries=[3])], "batch": [1, 2]},
    {
        "lr": [Warmup(2, 0.5) >> Constant(0.5), Warmup(2, 0.5) >> Constant(0.25)],
        "momentum": [0.0, Piecewise([0.0, 0.9], boundaries=[2])],
    },
)
"""What configurations are drawn from: they share much of their ways."""

OTHER_SPACES: tuple[Dimensions, ...] = (
    {"lr": [Constant(0.5), MultiStep(0.5, [1], gamma=0.5), MultiStep(0.5, [3], gamma=0.1)]},
    {"lr": [Constant(0.5), Piecewise([0.5, 0.25], boundaries=[5])], "batch": [1, 2]},
    {
        "lr": [Warmup(2, 0.5) >> Constant(0.5), Warmup(2, 0.5) >> Constant(0.1)],
        "momentum": [0.0, Piecewise([0.0, 0.9], boundaries=[4])],
    },
)
"""Spaces of the second study, which leave the ways of the first one elsewhere."""

LONG_STEPS, BRANCHES = 20, (3, 7, 12)
"""Steps of the long stages, and where trials of a second study leave them."""

Make = Callable[[Space, int, random.Random], Callable[[], Tuner]]
"""Returns what makes a tuner, given a space, a seed for it, and what decides the rest."""


def _grid(space: Space, seed: int, rng: random.Random) -> Callable[[], Tuner]:
    steps = rng.randint(3, 8)
    return lambda: Grid(space, max_steps=steps)


def _random(space: Space, seed: int, rng: random.Random) -> Callable[[], Tuner]:
    trials, steps = rng.randint(2, 4), rng.randint(3, 8)
    return lambda: Random(space, trials=trials, max_steps=steps, seed=seed)


def _repeats(space: Space, seed: int, rng: random.Random) -> Callable[[], Tuner]:
    return lambda: Repeats(Random(space, trials=2, max_steps=4, seed=seed), seeds=2)


def _sha(space: Space, seed: int, rng: random.Random) -> Callable[[], Tuner]:
    trials = rng.choice((4, 5))
    return lambda: SHA(space, trials=trials, max_steps=8, min_steps=2, eta=2, seed=seed)


def _hyperband(space: Space, seed: int, rng: random.Random) -> Callable[[], Tuner]:
    return lambda: Hyperband(space, trials=5, max_steps=4, min_steps=2, eta=2, seed=seed)


def _asha(space: Space, seed: int, rng: random.Random) -> Callable[[], Tuner]:
    most = rng.choice((4, 8))
    return lambda: ASHA(
        space, trials=5, max_steps=most, min_steps=2, eta=2, brackets="aggressive", seed=seed
    )


def _stopping_asha(space: Space, seed: int, rng: random.Random) -> Callable[[], Tuner]:
    return lambda: StoppingASHA(
        space, trials=5, max_steps=8, min_steps=2, eta=2, brackets="aggressive", seed=seed
    )


def _median(space: Space, seed: int, rng: random.Random) -> Callable[[], Tuner]:
    return lambda: MedianStopping(space, trials=4, max_steps=6, every=2, seed=seed)


def _pbt(space: Space, seed: int, rng: random.Random) -> Callable[[], Tuner]:
    trials = rng.choice((4, 6))
    return lambda: PBT(
        space, population=3, max_steps=6, every=2, trials=trials, truncation=0.5, seed=seed
    )


def _bandit(space: Space, seed: int, rng: random.Random) -> Callable[[], Tuner]:
    slack = rng.choice((0.1, 0.5))
    return lambda: Bandit(space, trials=4, max_steps=6, every=2, slack=slack, seed=seed)


def _early_term(space: Space, seed: int, rng: random.Random) -> Callable[[], Tuner]:
    delta = rng.choice((0.3, 0.6))
    return lambda: EarlyTerm(
        space, trials=4, max_steps=8, every=2, delta=delta, predictor=Persistence(), seed=seed
    )


def _pop(space: Space, seed: int, rng: random.Random) -> Callable[[], Tuner]:
    target, within = rng.choice((None, 0.2)), rng.choice((None, 60.0))
    barrier, ends_poor = rng.random() < 0.3, rng.random() < 0.7
    return lambda: POP(
        space,
        target=target,
        within=within,
        trials=4,
        max_steps=8,
        every=2,
        barrier=barrier,
        ends_poor=ends_poor,
        predictor=Persistence(),
        seed=seed,
    )


ORDERLY: dict[str, Make] = {
    "grid": _grid, "random": _random, "sha": _sha, "hyperband": _hyperband,
}  # fmt: skip
"""Tuners whose trials and steps are the same whatever the order of events."""

EAGER: dict[str, Make] = {
    "asha": _asha, "stopping-asha": _stopping_asha, "median": _median, "pbt": _pbt,
    "repeats": _repeats, "bandit": _bandit, "early-term": _early_term, "pop": _pop,
}  # fmt: skip
"""Tuners that decide by what has come in so far."""

TUNERS = {**ORDERLY, **EAGER}
"""All by name."""


OFFSETS = (0.0, 0.0, -4.0, 4.0)
"""Seconds by which the clock of the second driver may be ahead."""

CHECKED_AT = (2.0, 8.0, 30.0)
"""Seconds after which the check of a trainer has ended."""

SHARED = ("lease", "pause", "receipt", "repeat", "save", "cloud")
"""Faults after which all steps that were trained twice are reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A study: its tuner, and the workers of its drivers.

    Attributes
    ----------
    offset
        Seconds by which the clock of its drivers is ahead of the world's.
    checked_at
        The time at which the check of its trainer ends; 0 if there is none.
    """

    name: str
    tuner: str
    make: Callable[[], Tuner]
    options: DispatchOptions
    fleet: Fleet
    report_every: int
    snapshot_every: int
    offset: float = 0.0
    checked_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Studies, and what may go wrong in them.

    Attributes
    ----------
    plan
        The study that begins.
    other
        The study that arrives later, if the fault ``lease`` happens.
    """

    seed: int
    plan: Plan
    other: Plan
    faults: tuple[str, ...]
    most_faults: int
    parts: Parts = PARTS

    @classmethod
    def of(cls, seed: int, parts: Parts = PARTS) -> Scenario:
        """Return the scenario of a seed, with one of its parts replaced for a planted bug."""
        rng, more = random.Random(seed), random.Random(seed + 4)
        features = feature_set(more)
        number = rng.randrange(len(SPACES))
        report_every, most = rng.choice((1, 1, 2)), rng.choice((0, 2, 4, 8, 12))
        share = rng.choice((0.1, 0.5, 0.5))
        drawn = (name for name in FAULTS if name not in ("forget", "full"))
        faults = tuple(name for name in drawn if rng.random() < share)
        if rng.random() < 0.25:
            faults, most = tuple(name for name in SHARED if rng.random() < 0.9), most + 2
        if more.random() < 0.5:
            faults += ("full",)
        if random.Random(seed + 5).random() < 0.25:
            faults += ("forget",)
        if "shared" in features and "lease" not in faults:
            faults, most = (*faults, "lease"), most + 2
        first = _plan("first", SPACES[number], rng, report_every, most, features, more)
        space = rng.choice((SPACES, OTHER_SPACES))[number]
        second = _plan("second", space, rng, report_every, most, features, more)
        # They meet the same states, so that both need workers of the classes that made these.
        fleet = replace(first.fleet, weight=second.fleet.weight) if features else second.fleet
        second = replace(second, fleet=fleet)
        merges = replace(second.options, merge=True)
        second = replace(second, options=merges, offset=rng.choice(OFFSETS))
        check = random.Random(seed + 6)
        if check.random() < 0.25:
            first = replace(first, checked_at=check.choice(CHECKED_AT))
            second = replace(second, checked_at=check.choice(CHECKED_AT))
        scenario = cls(
            seed=seed, plan=first, other=second, faults=faults, most_faults=most, parts=parts
        )
        is_long = set(faults) <= set(SHARED) and not features
        return _with_long_stages(scenario) if is_long else scenario


def _with_long_stages(scenario: Scenario) -> Scenario:
    """Return some scenarios with a second study that parts from the middle of the first's stages.

    Short stages have hardly a middle: a driver is not past a step that the other one wants.
    """
    rng = random.Random(scenario.seed + 3)
    if rng.random() < 0.5:
        return scenario
    long, parting = Constant(0.5), [MultiStep(0.5, [at], gamma=0.1) for at in BRANCHES]
    plans = (
        replace(
            plan,
            tuner="grid",
            make=partial(Grid, Space(lr=[long, *branches]), max_steps=LONG_STEPS),
            options=replace(plan.options, saves=SavePolicy(every=rng.choice((None, 8)))),
        )
        for plan, branches in ((scenario.plan, ()), (scenario.other, parting))
    )
    first, other = plans
    return replace(scenario, plan=first, other=other)


def _plan(
    study: str,
    dimensions: Dimensions,
    rng: random.Random,
    report_every: int,
    most_faults: int,
    features: frozenset[str],
    more: random.Random,
) -> Plan:
    """Return a study; `more` decides what its workers are, so that the rest stays as it is."""
    models = {MODEL: [0, 1]} if features else {}
    tuner = rng.choice(list(TUNERS))
    made = TUNERS[tuner](Space(**dimensions, **models), rng.randrange(8), rng)()
    return Plan(
        name=study,
        tuner=tuner,
        # A copy is made ten times as fast as a tuner is.
        make=partial(pickle.loads, pickle.dumps(made)),
        options=_options(rng, most_faults),
        fleet=Fleet.of(features, rng.randint(1, 3), more),
        report_every=report_every,
        snapshot_every=rng.choice((1, 4, 1000)),
    )


def _options(rng: random.Random, most_faults: int) -> DispatchOptions:
    return DispatchOptions(
        saves=SavePolicy(every=rng.choice((None, None, 2, 3)), at_changes=rng.random() < 0.5),
        lookahead_seconds=rng.choice((0.0, 2.0)),
        merge=rng.random() < 0.85,
        # What kills its workers is told from a stage that was unlucky as often as workers die for
        # other reasons, and once because it ended just before the next one killed them.
        losses_allowed=most_faults + 1,
    )
